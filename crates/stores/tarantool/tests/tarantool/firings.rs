//! Interruptions at each step of a firing of a schedule.

taskyard_testkit::firing_suite!(taskyard_testkit::tarantool::SharedTarantool);
