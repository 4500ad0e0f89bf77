//! Tasks in Redis: the suite, and what only a server beyond a network can get wrong.

mod instance;

mod fixture;
