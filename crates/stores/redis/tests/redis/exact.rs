//! Numbers, names and sizes that a database must keep exactly.

taskyard_testkit::exact_suite!(taskyard_testkit::redis::SharedRedis);
