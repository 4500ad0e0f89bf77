//! The list of cases, written once.

/// One test for each case of the suite, on a queue that the expression makes.
///
/// `conformance_suite!(expression)` runs each case on its own thread without a runtime;
/// `conformance_suite!(expression, block_on)` runs it with the function given, where the queue
/// needs a runtime. The expression is evaluated inside that and may await.
#[macro_export]
macro_rules! conformance_suite {
    ($make:expr) => {
        $crate::conformance_suite! { $make, $crate::block_on }
    };
    ($make:expr, $block_on:path) => {
        $crate::conformance_suite! { @cases ($make) ($block_on)
            put: ids_count_up_from_zero, a_batch_is_answered_in_order, ids_are_never_used_again,
                bodies_are_kept_byte_for_byte, a_new_task_is_plain, kinds_without_times_ignore_them,
                kinds_without_times_ignore_their_defaults, the_tube_gives_the_defaults,
                a_put_wins_over_the_defaults;
            take: the_oldest_goes_first, order_is_priority_then_id,
                what_comes_back_goes_to_the_front, a_delivery_has_a_lease,
                nothing_to_take_is_an_empty_answer, a_batch_gives_at_most_what_was_asked,
                lease_numbers_are_unique, a_later_delivery_has_a_larger_lease,
                a_lease_time_replaces_the_ttr,
                a_lease_time_works_in_every_kind, the_expired_is_skipped_before_it_is_removed,
                an_unknown_session_cannot_take, a_delivery_without_ttr_does_not_end;
            ack: by_lease, by_session, by_anybody_while_taken, others_are_refused,
                what_is_not_there_is_missing, an_earlier_lease_is_stale,
                a_past_lease_is_stale_before_the_tick, a_lease_holds_until_its_end,
                a_batch_has_an_outcome_for_each;
            release: a_released_task_is_ready_and_counted, an_uncounted_release_leaves_no_trace,
                a_delay_moves_due_and_ttl, kinds_without_times_ignore_the_delay,
                it_needs_the_holder, a_past_lease_is_stale_before_the_tick,
                an_expired_task_dies_when_given_back, it_returns_to_its_place;
            bury: it_needs_no_holder, the_buried_are_not_delivered, a_named_holder_must_hold,
                a_second_bury_changes_nothing, what_is_not_there_is_missing,
                it_leaves_attempts_alone, the_holder_loses_it;
            kick: lowest_first_and_counted, more_than_there_are_is_fine, nothing_to_kick_is_zero,
                attempts_stay, a_delay_is_forgotten, the_ttl_runs_on;
            touch: it_moves_lease_ttl_and_ttr, it_is_cut_at_forever, no_time_changes_nothing,
                it_counts_once, it_needs_the_holder, a_past_lease_is_stale_before_the_tick,
                kinds_without_times_refuse_it, a_lease_time_can_be_prolonged_in_every_kind;
            delete: it_works_in_every_state, a_batch_has_an_outcome_for_each,
                the_holder_finds_it_missing;
            peek: the_missing_are_left_out, it_changes_nothing, it_says_why_not_now,
                the_expired_do_not_wait, deliveries_show_who_holds_what;
            list: pages_by_id_follow_each_other, a_page_may_begin_after_a_removed_task,
                states_are_selected, gaps_between_ids_are_skipped, expired_tasks_are_not_listed,
                the_queue_is_listed_in_the_order_of_delivery, a_subqueue_has_one_task_in_the_queue,
                states_and_limit_are_checked;
            truncate: everything_goes_uncounted, holders_find_nothing,
                the_tube_can_be_dropped_afterwards, everything_is_free_again;
            release_all: every_delivery_ends, sessions_stay, nothing_taken_is_fine;
            drop: taken_tasks_forbid_it, other_tasks_go_with_it, a_second_drop_finds_nothing,
                the_name_can_be_used_again, old_sessions_do_not_reach_a_new_tube;
            tubes: a_new_tube_is_empty, options_are_kept, all_are_shown_by_name,
                a_name_is_given_once, if_not_exists_compares_nothing,
                every_verb_misses_an_unknown_tube, a_change_is_for_later_puts,
                options_can_be_taken_away, it_shows_what_comes_next;
            naming: a_renamed_tube_keeps_its_tasks, the_old_name_can_be_used_again,
                a_name_that_is_taken_is_refused, a_queue_number_is_permanent,
                a_name_that_turns_text_around_is_refused;
            batch: commands_run_in_order, a_refusal_is_alone, an_empty_batch_is_fine,
                an_empty_command_is_fine;
            attempts: every_return_counts, the_previous_start_is_when_it_became_ready, a_taken_task_tells_since_when_it_was_ready, the_last_failure_buries, a_delayed_release_buries_too,
                an_uncounted_release_uses_nothing_up, a_kick_gives_one_more,
                a_plain_bury_is_told_apart, the_limit_can_be_set_later;
            capacity: every_state_counts, a_batch_goes_in_whole_or_not_at_all, what_goes_makes_room,
                it_can_be_changed, every_kind_heeds_it, without_a_number_there_is_no_limit;
            delay: a_delayed_task_waits, no_time_is_no_delay, a_start_time_is_a_delay,
                a_start_time_excludes_a_delay, a_past_start_time_is_now, due_tasks_stand_in_order,
                many_may_end_at_once;
            limits: tasks_in_a_put, items_in_other_commands, ids_in_a_peek, bytes_in_a_meta,
                bytes_in_a_subqueue_key, tubes_in_a_store;
            pause: nothing_is_taken, a_tube_may_begin_paused, everything_else_works;
            restart: names_and_queue_numbers_are_kept, tasks_are_as_they_were, the_taken_are_ready_again, lease_numbers_go_on,
                ids_go_on, tubes_keep_their_options, what_is_gone_stays_gone, numbers_begin_again,
                sessions_are_gone, temporary_tubes_are_empty, time_passes_while_it_is_down,
                order_is_kept;
            sessions: tasks_return_when_the_last_leaves, connections_share_a_session,
                an_unknown_session_cannot_be_joined, an_unknown_session_cannot_be_left,
                others_keep_their_tasks, only_what_it_holds_now_returns, a_time_keeps_them_a_while,
                who_comes_back_in_time_keeps_them, a_lease_outlives_the_connection,
                a_ttr_does_not_wait_for_the_session, a_session_begun_again_is_new;
            stats: every_effect_has_its_number, what_has_no_effect_is_not_counted,
                each_tube_has_its_own, the_oldest_ready_is_told, the_oldest_could_be_taken,
                the_look_for_the_oldest_ends;
            subqueue: one_runs_at_a_time, a_batch_gives_one_of_each, without_a_name_it_is_nil,
                other_kinds_ignore_it, the_buried_and_delayed_do_not_block, every_end_frees_it,
                order_goes_across_them, a_better_task_goes_first_when_it_is_free,
                the_next_is_not_hidden, the_expired_does_not_hide_the_next;
            ttl: what_nobody_took_is_removed, no_time_to_live_is_accepted, it_never_ends_a_delivery,
                it_dies_when_it_comes_back, it_may_end_deliveries_as_upstream,
                a_short_ttr_is_still_first, a_delay_is_added, no_life_after_a_delay,
                the_buried_die_too, the_tube_may_give_it;
            ttr: the_task_comes_back, where_it_comes_from, a_delay_does_not_change_it,
                who_was_late_has_lost_it, each_delivery_has_its_own;
        }
    };
    (@cases ($make:expr) ($block_on:path) $($file:ident: $($case:ident),+;)+) => {
        /// A queue for one case.
        async fn make_queue() -> impl $crate::Harness {
            $make
        }

        /// Runs one case to its end.
        fn run_case(case: impl ::core::future::Future<Output = ()>) {
            $block_on(case);
        }

        $(
            mod $file {
                $(
                    #[test]
                    fn $case() {
                        super::run_case(async {
                            $crate::$file::$case(super::make_queue().await).await;
                        });
                    }
                )+
            }
        )+
    };
}

#[cfg(test)]
mod tests {
    /// The files of cases, as text.
    const FILES: &[&str] = &[
        include_str!("put.rs"),
        include_str!("take.rs"),
        include_str!("ack.rs"),
        include_str!("release.rs"),
        include_str!("bury.rs"),
        include_str!("kick.rs"),
        include_str!("touch.rs"),
        include_str!("delete.rs"),
        include_str!("peek.rs"),
        include_str!("truncate.rs"),
        include_str!("release_all.rs"),
        include_str!("drop.rs"),
        include_str!("tubes.rs"),
        include_str!("batch.rs"),
        include_str!("attempts.rs"),
        include_str!("capacity.rs"),
        include_str!("delay.rs"),
        include_str!("limits.rs"),
        include_str!("pause.rs"),
        include_str!("restart.rs"),
        include_str!("sessions.rs"),
        include_str!("stats.rs"),
        include_str!("subqueue.rs"),
        include_str!("ttl.rs"),
        include_str!("ttr.rs"),
    ];

    /// A case that is not in the table would never run, and nobody would notice.
    #[test]
    fn every_case_is_in_the_table() {
        let table = include_str!("cases.rs");
        for file in FILES {
            for rest in file.split("pub async fn ").skip(1) {
                let case = rest.split('<').next().unwrap_or_default();
                let listed = [',', ';'].iter().any(|end| table.contains(&format!(" {case}{end}")));
                assert!(listed, "{case} is not in the table");
            }
        }
    }
}
