//! Moving between stores: there and back, used afterwards, broken off and gone on with, and what is refused.

mod content;
mod places;
mod weak;

mod adapter;
mod each;
mod nodes;
mod ways;
