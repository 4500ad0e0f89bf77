//! Lists the cases and generates a test for each.

/// Generates one test for each case of semaphores, on a queue that the expression creates; see
/// [`conformance_suite!`](crate::conformance_suite) for the arguments.
#[macro_export]
macro_rules! semaphore_suite {
    ($make:expr) => {
        $crate::semaphore_suite! { $make, $crate::block_on }
    };
    ($make:expr, $block_on:path) => {
        $crate::semaphore_suite! { @table ($crate::semaphore_tests) ($make) ($block_on) }
    };
    // Calls another macro with the arguments and the table.
    (@table ($($macro:tt)+) $($argument:tt)*) => {
        $($macro)+! { $($argument)*
            admission: a_new_semaphore_has_the_defaults, an_existing_semaphore_is_unchanged,
                different_options_for_an_existing_one_are_refused, the_effective_tail_is_shown,
                members_are_shown_in_pages, a_drop_removes_the_semaphore, a_drop_survives_a_restart,
                a_change_creates_a_semaphore, all_are_shown_by_key,
                the_highest_priorities_are_admitted, equal_priorities_are_admitted_in_order,
                a_release_admits_the_next, a_higher_capacity_admits_more,
                many_are_admitted_in_several_steps, a_waiting_task_can_leave, a_batch_is_one_call,
                a_new_priority_keeps_the_seniority, grants_only_grow, a_stale_release_frees_nothing,
                everything_survives_a_restart;
            eviction: one_waiting_task_revokes_one_of_nine_hundred,
                the_first_hundred_are_never_asked, flapping_within_the_margin_revokes_nothing,
                flapping_beyond_the_margin_revokes_one_at_a_time,
                the_largest_priorities_are_accepted, a_lower_capacity_waits, a_lower_capacity_sheds,
                no_capacity_sheds_all, no_capacity_sheds_all_without_a_tail,
                a_holder_that_declines_is_not_asked_again, a_decline_keeps_the_best_protected,
                a_decline_does_not_shrink_the_tail, a_decline_ends_with_its_request,
                a_notified_holder_receives_the_end_of_its_request,
                an_unnotified_holder_is_revoked_without_events, a_request_is_withdrawn,
                a_lost_request_is_repeated, concurrent_requests_are_limited;
            times: a_new_grant_is_not_revoked, a_yield_starts_the_cool_down, a_lease_ends,
                an_extended_lease_lasts, an_unacknowledged_grant_goes_to_another,
                only_leases_that_ran_out_drop_tasks, a_request_is_repeated_until_the_release,
                force_takes_the_grant_away;
            events: events_repeat_until_acknowledged, a_later_event_waits_for_the_earlier,
                a_release_removes_pending_events, each_semaphore_has_its_own_events,
                half_of_the_acks_are_lost;
            gates: only_admitted_tasks_are_ready, every_end_of_a_task_frees_its_grant,
                a_better_task_replaces_a_ready_one, a_better_task_waits_for_a_taken_one,
                a_released_task_keeps_its_grant, a_delay_gives_up_the_grant,
                an_ended_delivery_keeps_the_grant, a_waiting_task_expires,
                tubes_and_direct_tasks_share_one_queue, a_taken_task_keeps_its_grant,
                an_absent_semaphore_is_refused, a_semaphore_of_a_tube_is_not_dropped,
                a_task_may_have_a_priority_of_its_own, a_priority_of_its_own_needs_a_semaphore,
                sub_queues_work_with_a_semaphore, a_task_without_grant_does_not_block_its_sub_queue,
                a_temporary_tube_leaves_no_grants, a_restart_keeps_the_order,
                a_replaced_task_is_queued_again, the_members_ahead_are_counted;
            input: priorities_must_be_numbers, invalid_limits_are_refused,
                an_absent_key_is_an_error, a_key_that_changes_text_direction_is_refused,
                a_command_has_its_limit;
            pairs: two_calls_in_both_orders, two_calls_in_one_batch;
        }
    };
}

/// Generates the tests of [`semaphore_suite!`](crate::semaphore_suite) from its table.
#[doc(hidden)]
#[macro_export]
macro_rules! semaphore_tests {
    (($make:expr) ($block_on:path) $($file:ident: $($case:ident),+;)+) => {
        /// Runs one case to its end, on a queue of its own.
        fn run_semaphore_case(case: fn($crate::boxed::BoxedHarness) -> $crate::boxed::Case) {
            $block_on(async { case($crate::boxed::BoxedHarness::new($make)).await });
        }

        mod semaphores {
            $(
                mod $file {
                    $(
                        #[test]
                        fn $case() {
                            super::super::run_semaphore_case($crate::boxed::semaphores::$file::$case);
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

    /// A case that is missing in the table would never run, without any failure.
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
