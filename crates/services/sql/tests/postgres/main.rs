//! SQL tasks in a real database.

mod rig;

mod bad_input;
mod calendar;
mod columns;
mod configuration;
mod crashes;
mod documents;
mod encryption;
mod first_description;
mod groups;
mod limits;
mod losses;
mod output;
mod refusals;
mod rights;
mod several;
mod stopping;
mod times;
