//! Lists the cases and generates a test for each.

/// Generates one test for each case of the suite, on a queue that the expression creates.
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
        $crate::conformance_suite! { @table ($crate::conformance_tests) ($make) ($block_on) }
    };
    // Calls another macro with the arguments and the table.
    (@table ($($macro:tt)+) $($argument:tt)*) => {
        $($macro)+! { $($argument)*
            put: ids_count_up_from_zero, a_batch_is_answered_in_order, ids_are_never_used_again,
                bodies_are_kept_byte_for_byte, a_new_task_has_no_deadline_and_no_holder,
                kinds_without_times_ignore_them, kinds_without_times_ignore_their_defaults,
                missing_values_come_from_the_tube, values_of_a_put_override_the_tube,
                values_are_checked_before_the_tube;
            take: the_lowest_id_is_taken_first, order_is_priority_then_id,
                a_released_task_returns_to_the_front, a_delivery_has_a_lease,
                an_empty_tube_gives_an_empty_reply, a_batch_gives_at_most_the_requested_count,
                lease_numbers_are_unique, a_later_delivery_has_a_larger_lease,
                a_lease_time_replaces_the_ttr, a_lease_time_works_in_every_kind,
                an_expired_task_is_skipped_before_it_is_removed, an_unknown_session_cannot_take,
                a_delivery_without_ttr_does_not_expire;
            ack: by_lease, by_session, without_a_holder_while_taken, other_holders_are_refused,
                an_absent_task_is_missing, an_earlier_lease_is_stale,
                an_expired_lease_is_stale_before_the_tick, a_lease_is_valid_until_its_end,
                a_batch_has_an_outcome_for_each, a_long_batch_may_mix_all_tasks;
            release: a_released_task_is_ready_and_counted, an_uncounted_release_leaves_no_trace,
                a_delay_moves_due_and_ttl, kinds_without_times_ignore_the_delay,
                only_the_holder_can_release, an_expired_lease_is_stale_before_the_tick,
                an_expired_task_is_removed_on_release, a_delayed_release_keeps_the_order;
            bury: any_client_can_bury, buried_tasks_are_not_delivered,
                a_named_holder_must_hold_the_task, a_second_bury_changes_nothing,
                an_absent_task_is_missing, a_bury_is_no_attempt, the_holder_loses_the_task;
            kick: lowest_first_and_counted, a_count_above_the_buried_is_accepted,
                an_empty_kick_returns_zero, attempts_are_kept, a_kicked_task_has_no_delay,
                the_ttl_is_unchanged, chosen_tasks_are_kicked, a_kick_can_reset_the_attempts;
            fail: a_failure_is_kept, the_worker_is_shown_while_it_holds_the_task,
                a_failed_task_is_delayed, the_last_failed_attempt_buries, a_bury_keeps_an_error,
                only_the_holder_can_fail, an_expired_lease_is_a_failure,
                an_ended_session_is_a_failure, other_ends_store_nothing,
                the_latest_failures_are_kept, long_texts_are_kept, a_bad_worker_name_is_refused;
            done: a_done_task_is_kept, other_tubes_keep_nothing, a_plain_ack_has_no_result,
                a_done_task_keeps_its_failures, done_tasks_are_removed_by_age,
                done_tasks_are_removed_by_count, done_tasks_do_not_count,
                a_done_task_is_never_delivered, a_done_task_can_be_deleted, kept_tasks_are_counted,
                done_tasks_go_with_their_tube, retention_can_be_changed,
                done_tasks_are_listed_among_others, retention_options_are_checked,
                a_large_result_is_refused;
            keys: a_held_key_adds_nothing, every_state_holds_the_key,
                a_returned_task_keeps_its_key, the_end_frees_the_key,
                a_key_stays_held_after_the_end, an_expired_task_ended_with_its_time_to_live,
                a_waiting_task_is_replaced, a_replaced_task_may_have_a_start_time,
                a_replaced_task_keeps_its_place, other_holders_are_not_replaced,
                a_replacement_sets_unique_for, a_batch_is_handled_in_order,
                a_key_may_occur_in_every_task_of_a_put,
                a_key_of_a_task_that_is_over_is_free_in_the_same_put,
                commands_of_a_batch_see_the_key, only_added_tasks_need_capacity,
                keys_go_with_their_tube, kept_tasks_do_not_hold_keys, tasks_are_listed_by_key,
                a_task_shows_its_key, unique_for_is_limited;
            touch: a_touch_extends_lease_ttl_and_ttr, a_touch_is_capped_at_forever,
                a_touch_of_zero_changes_nothing, a_touch_counts_once, only_the_holder_can_touch,
                an_expired_lease_is_stale_before_the_tick, kinds_without_times_refuse_a_touch,
                a_lease_time_can_be_extended_in_every_kind;
            delete: a_delete_works_in_every_state, a_batch_has_an_outcome_for_each,
                the_holder_finds_the_task_missing;
            peek: missing_tasks_are_omitted, consecutive_ids_show_the_same_tasks,
                a_peek_changes_nothing, a_task_shows_why_it_waits,
                an_expired_task_is_not_shown_as_waiting, deliveries_show_their_holders;
            search: payloads_with_the_bytes_are_found, a_search_selects_states,
                a_search_counts_what_it_compares, a_search_is_checked;
            list: pages_by_id_follow_each_other, a_page_may_begin_after_a_removed_task,
                states_are_selected, gaps_between_ids_are_skipped, expired_tasks_are_not_listed,
                an_expired_task_does_not_hide_the_next,
                the_queue_is_listed_in_the_order_of_delivery, a_subqueue_has_one_task_in_the_queue,
                states_and_limit_are_checked;
            positions: positions_are_by_priority_and_id, only_waiting_tasks_have_a_position,
                delayed_tasks_are_counted_by_periods, a_due_task_is_counted_as_ready,
                sub_queues_are_counted_separately, an_expired_task_is_not_counted,
                an_expired_task_of_a_sub_queue_is_not_counted, any_priority_is_counted,
                the_number_of_positions_is_limited, many_tasks_ahead_are_counted;
            truncate: all_tasks_are_removed_uncounted, holders_find_their_tasks_missing,
                the_tube_can_be_dropped_afterwards, sub_queues_and_capacity_are_free_again;
            release_all: every_delivery_ends, sessions_continue,
                a_tube_without_deliveries_is_accepted;
            drop: taken_tasks_prevent_a_drop, other_tasks_are_removed, a_second_drop_finds_no_tube,
                the_name_can_be_used_again, old_sessions_do_not_reach_a_new_tube;
            tubes: a_new_tube_is_empty, options_are_kept, invalid_options_are_refused_first, all_are_shown_by_name,
                a_name_is_used_once, if_not_exists_compares_nothing,
                every_verb_refuses_an_unknown_tube, a_change_applies_to_later_puts,
                options_can_be_removed, a_tube_shows_available_tasks_and_its_next_deadline;
            naming: a_renamed_tube_keeps_its_tasks, the_old_name_can_be_used_again,
                a_used_name_is_refused, a_queue_number_is_permanent,
                a_name_that_changes_text_direction_is_refused;
            batch: commands_run_in_order, a_refused_command_does_not_stop_the_others,
                an_empty_batch_is_accepted, an_empty_command_is_accepted;
            attempts: every_return_counts, the_previous_start_is_when_it_became_ready,
                a_taken_task_shows_when_it_became_ready, the_last_failed_attempt_buries,
                a_delayed_release_buries_too, an_uncounted_release_is_no_attempt,
                a_kick_allows_one_more_attempt, a_plain_bury_has_its_own_reason,
                the_limit_can_be_set_later;
            capacity: every_state_counts, a_batch_is_put_whole_or_not_at_all,
                removed_tasks_free_capacity, the_capacity_can_be_changed, every_kind_has_a_capacity,
                no_capacity_is_no_limit, no_task_fits_into_a_capacity_of_zero;
            delay: a_delayed_task_waits, a_delay_of_zero_is_no_delay, a_start_time_is_a_delay,
                a_start_time_excludes_a_delay, a_past_start_time_is_now,
                due_tasks_are_ordered_by_priority_and_id, many_delays_end_at_once;
            limits: tasks_in_a_put, items_in_other_commands, ids_in_a_peek, bytes_in_a_meta,
                bytes_in_a_subqueue_key, tubes_in_a_store;
            pause: a_paused_tube_gives_nothing, a_tube_may_begin_paused,
                other_commands_work_while_paused;
            rate: a_limit_is_an_option, limits_are_checked, a_take_delivers_at_most_the_tokens,
                a_batch_shares_the_tokens, tokens_are_added_evenly, the_next_token_is_shown,
                other_reasons_come_first, ended_deliveries_give_nothing_back,
                an_empty_take_costs_nothing, each_tube_has_its_own_tokens,
                a_changed_limit_keeps_whole_tokens, tokens_belong_to_the_tube,
                tokens_survive_a_restart;
            restart: names_and_queue_numbers_are_kept, tasks_are_unchanged,
                taken_tasks_are_ready_again, lease_numbers_continue, ids_continue,
                tubes_keep_their_options, removed_tasks_and_tubes_stay_removed,
                counters_start_at_zero, sessions_end, temporary_tubes_are_empty,
                time_passes_while_it_is_down, order_is_kept, failures_are_kept,
                done_tasks_are_kept, keys_are_kept, temporary_tubes_forget_keys;
            retry: a_policy_is_an_option, policies_are_checked, the_delay_grows_up_to_the_longest,
                the_jitter_comes_from_the_number_of_the_command,
                a_policy_delay_is_like_an_explicit_one, an_explicit_end_ignores_the_policy,
                without_a_policy_nothing_changes, kinds_without_times_have_no_delay,
                an_expired_lease_waits_if_the_policy_says_so,
                the_jitter_of_expired_leases_comes_from_the_tick, other_ends_do_not_use_the_policy,
                the_last_attempt_buries, a_task_has_its_own_number_of_attempts,
                policies_survive_a_restart;
            schedules: every_part_is_kept, a_replaced_schedule_keeps_its_counters,
                a_name_is_used_once, schedules_are_checked,
                every_command_refuses_an_unknown_schedule, lists_are_by_name,
                due_schedules_are_by_time, due_schedules_come_with_the_clock,
                a_replaced_schedule_may_stay_paused, a_fire_adds_its_tasks, a_time_fires_once,
                a_fire_may_skip_and_end, the_tasks_of_a_fire_are_limited,
                too_many_tasks_are_refused_at_any_time,
                a_refused_fire_changes_nothing, runs_do_not_overlap,
                names_of_tasks_that_do_not_overlap_are_shorter, a_schedule_outlives_its_tube,
                a_paused_schedule_does_not_fire, a_removed_schedule_leaves_its_tasks,
                schedules_survive_a_restart;
            sessions: tasks_return_when_the_last_connection_leaves, connections_share_a_session,
                an_unknown_session_cannot_be_joined, an_unknown_session_cannot_be_left,
                tasks_of_other_holders_stay_taken, only_currently_held_tasks_return,
                a_session_timeout_keeps_tasks, a_session_that_is_joined_in_time_keeps_its_tasks,
                a_lease_outlives_the_connection, a_ttr_does_not_wait_for_the_session,
                a_session_begun_again_holds_nothing;
            stats: every_effect_has_its_counter, commands_without_effect_are_not_counted,
                each_tube_has_its_own_counters, the_oldest_ready_task_is_shown,
                the_oldest_ready_task_can_be_taken, the_search_for_the_oldest_is_limited;
            subqueue: one_task_runs_at_a_time, a_batch_gives_one_of_each,
                the_default_sub_queue_is_nil, other_kinds_ignore_sub_queues,
                buried_and_delayed_tasks_do_not_block, every_end_of_a_delivery_frees_the_sub_queue,
                order_is_across_sub_queues, the_best_priority_is_first_in_a_free_sub_queue,
                a_removed_task_does_not_block_the_next, an_expired_task_does_not_block_the_next,
                a_sub_queue_that_changes_text_direction_is_refused;
            ttl: an_untaken_task_is_removed, a_ttl_of_zero_is_accepted,
                the_ttl_does_not_end_a_delivery, an_expired_task_is_removed_after_its_lease,
                the_ttl_can_end_deliveries_as_upstream, a_shorter_ttr_ends_the_delivery_first,
                a_delay_extends_the_ttl, a_ttl_of_zero_ends_after_the_delay, buried_tasks_expire,
                the_tube_has_a_default_ttl;
            ttr: the_task_is_ready_again, the_ttr_comes_from_put_tube_or_ttl,
                a_delay_does_not_change_the_ttr, a_late_holder_has_lost_the_task,
                each_delivery_has_its_own_ttr;
        }
    };
}

/// Generates the tests of [`conformance_suite!`](crate::conformance_suite) from its table.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests {
    (($make:expr) ($block_on:path) $($file:ident: $($case:ident),+;)+) => {
        /// Runs one case to its end, on a queue of its own.
        fn run_case(case: fn($crate::boxed::BoxedHarness) -> $crate::boxed::Case) {
            $block_on(async { case($crate::boxed::BoxedHarness::new($make)).await });
        }

        $(
            mod $file {
                $(
                    #[test]
                    fn $case() {
                        super::run_case($crate::boxed::$file::$case);
                    }
                )+
            }
        )+
    };
}

#[cfg(test)]
mod tests {
    /// A case that is missing in the table would never run, without any failure. The files were listed here, and one was
    /// forgotten.
    #[test]
    fn every_case_is_in_the_table() {
        let table = include_str!("cases.rs");
        let mut cases = 0;
        for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src")).unwrap() {
            let path = file.unwrap().path();
            if !path.is_file() {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            for rest in text.split("pub async fn ").skip(1) {
                let Some((case, _)) = rest.split_once("<H: Harness>") else { continue };
                if case.contains(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
                    continue;
                }
                let listed = [',', ';'].iter().any(|end| table.contains(&format!(" {case}{end}")));
                assert!(listed, "{case} of {path:?} is not in the table");
                cases += 1;
            }
        }
        assert!(cases >= 300, "{cases} cases were found");
    }
}
