//! The pool over a real Redis: its parts as tasks of this process, or as processes that are killed and frozen.

mod play;
mod yard;

mod acting;
mod audit;
mod boundaries;
mod cluster;
mod edges;
mod failing;
mod forgetting;
mod lost_words;
mod path;
mod storm;
mod tls;
