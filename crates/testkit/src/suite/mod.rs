//! The suite of stores that servers share: kills, lost replies, interrupted firings of schedules, several servers, exact values, positions in large tubes; and storms on their servers.
//!
//! A case is a function over [`SharedDatabase`](crate::SharedDatabase); each database runs all of them by one macro per file. What
//! only one database can do wrong is tested beside its store.

#![expect(missing_docs, reason = "the name of a case says what it is about")]

pub mod exact;
#[cfg(feature = "engine")]
mod firing_field;
#[cfg(feature = "engine")]
pub mod firings;
pub mod kills;
pub mod lost_replies;
pub mod positions;
pub mod servers;
#[cfg(feature = "storm")]
pub mod storms;

/// Defines a macro that makes a test of each listed case of a module of this suite.
macro_rules! suite {
    ($(#[$doc:meta])* $name:ident, $module:ident, $dollar:tt: $($case:ident)*) => {
        $(#[$doc])*
        #[macro_export]
        macro_rules! $name {
            ($dollar database:ty $dollar(, $dollar argument:expr)*) => {
                $(
                    #[test]
                    fn $case() {
                        $crate::suite::$module::$case::<$dollar database>($dollar($dollar argument),*);
                    }
                )*
            };
        }
    };
}
pub(crate) use suite;
