//! Kills of the database under load.

taskyard_testkit::kill_suite!(taskyard_testkit::tarantool::SharedTarantool);
