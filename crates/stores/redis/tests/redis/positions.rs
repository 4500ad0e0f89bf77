//! Positions of tasks in large tubes.

taskyard_testkit::positions_suite!(taskyard_testkit::redis::SharedRedis);
