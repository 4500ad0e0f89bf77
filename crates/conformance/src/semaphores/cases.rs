//! The list of cases, written once.

/// One test for each case of semaphores, on a queue that the expression makes; see
/// [`conformance_suite!`](crate::conformance_suite) for the arguments.
#[macro_export]
macro_rules! semaphore_suite {
    ($make:expr) => {
        $crate::semaphore_suite! { $make, $crate::block_on }
    };
    ($make:expr, $block_on:path) => {
        $crate::semaphore_suite! { @cases ($make) ($block_on)
            admission: a_new_one_has_the_defaults, one_that_is_there_is_left_alone,
                one_that_is_there_and_differs_is_refused, the_tail_is_shown_as_it_is, a_line_is_shown_in_pages,
                a_drop_removes_it, a_drop_survives_a_restart,
                a_change_makes_one_too, all_are_shown_by_key, the_best_get_in,
                of_equals_the_first_gets_in, a_release_lets_the_next_in,
                a_higher_capacity_lets_more_in, many_get_in_by_turns, who_waits_can_leave, a_batch_is_one_call,
                a_new_priority_keeps_the_seniority, grants_only_grow,
                a_stale_release_frees_nothing, everything_survives_a_restart;
            eviction: one_better_waiter_asks_one_of_nine_hundred, the_first_hundred_are_never_asked,
                flapping_within_the_margin_moves_nobody, flapping_beyond_the_margin_moves_one_at_a_time, the_largest_numbers_are_numbers_too, a_lower_capacity_waits,
                a_lower_capacity_sheds, no_capacity_sheds_all, no_capacity_sheds_all_without_a_tail,
                who_declines_is_not_asked_again,
                who_declines_leaves_the_best_alone, a_decline_does_not_shrink_the_tail,
                a_decline_ends_with_its_request, a_holder_that_heard_a_request_hears_its_end,
                who_was_never_told_goes_back_silently, a_request_is_taken_back, a_lost_request_is_made_again,
                no_more_are_asked_than_allowed;
            times: a_young_grant_is_left_alone, who_yields_stands_back, a_lease_ends,
                an_extended_lease_lasts, an_unacknowledged_grant_goes_to_another, only_leases_that_ran_out_drop_tasks,
                who_does_not_release_is_asked_again, force_takes_the_grant_away;
            events: they_come_again_until_acknowledged, a_later_one_waits_for_the_earlier,
                a_release_takes_them_back, each_semaphore_has_its_own, half_of_the_acks_are_lost;
            gates: only_the_admitted_are_ready, every_end_frees_the_place,
                a_better_task_takes_the_place_of_a_ready_one, a_better_task_waits_for_a_taken_one,
                a_released_task_keeps_its_place, a_delay_gives_the_place_away,
                a_holder_that_is_gone_keeps_nothing, who_waits_too_long_dies, one_line_for_all,
                the_work_keeps_its_place, an_absent_semaphore_is_refused,
                a_semaphore_before_a_tube_is_not_dropped,
                a_task_may_have_a_priority_of_its_own, a_priority_of_its_own_needs_a_semaphore,
                sub_queues_work_behind_one, a_sub_queue_goes_on_without_who_lost_its_place,
                a_temporary_tube_leaves_no_places_behind, a_restart_keeps_the_line;
            input: priorities_must_be_numbers, limits_must_make_sense, an_absent_key_is_an_error, a_key_that_turns_text_around_is_refused,
                a_command_has_its_limit;
            pairs: two_calls_in_both_orders, two_calls_in_one_batch;
        }
    };
    (@cases ($make:expr) ($block_on:path) $($file:ident: $($case:ident),+;)+) => {
        /// A queue for one case.
        async fn make_semaphores() -> impl $crate::Harness {
            $make
        }

        /// Runs one case to its end.
        fn run_semaphore_case(case: impl ::core::future::Future<Output = ()>) {
            $block_on(case);
        }

        mod semaphores {
            $(
                mod $file {
                    $(
                        #[test]
                        fn $case() {
                            super::super::run_semaphore_case(async {
                                let queue = super::super::make_semaphores().await;
                                $crate::semaphores::$file::$case(queue).await;
                            });
                        }
                    )+
                }
            )+
        }
    };
}

#[cfg(test)]
mod tests {
    /// The files of cases, as text.
    const FILES: &[&str] = &[
        include_str!("admission.rs"),
        include_str!("eviction.rs"),
        include_str!("times.rs"),
        include_str!("events.rs"),
        include_str!("gates.rs"),
        include_str!("input.rs"),
        include_str!("pairs.rs"),
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
