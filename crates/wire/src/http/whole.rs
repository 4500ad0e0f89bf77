//! Parses whole numbers in requests: `3`, `3.0` and `3e0` are the same integer.
//!
//! A number with a fraction or an exponent is parsed as a float, which is exact only up to 2^53.
//! Beyond that it could name another task than the intended one, so it is refused.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// From here on neighbouring integers are the same float.
const EXACT_BELOW: f64 = 9_007_199_254_740_992.0;

/// A whole number as a request may write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Whole<T>(T);

/// The integers that requests have.
pub(super) trait Integer: TryFrom<u64> {
    /// The largest one.
    const MAX: u64;
}

impl Integer for u64 {
    const MAX: u64 = u64::MAX;
}

/// A count that the core stores with a sign; in JSON none is below zero.
impl Integer for i64 {
    const MAX: u64 = i64::MAX as u64;
}

impl Integer for u32 {
    const MAX: u64 = u32::MAX as u64;
}

/// Parses a whole number in a text such as a query parameter.
pub fn parse_whole(text: &str) -> Result<u64, String> {
    match text.parse() {
        // The parser would also accept a plus sign, which no other interface of Taskyard does.
        Ok(number) if !text.starts_with('+') => Ok(number),
        _ => serde_json::from_str::<Whole<u64>>(text).map(|whole| whole.0).map_err(|_| {
            let beginning: String = text.chars().take(40).collect();
            format!("'{beginning}' is not a whole number from 0 to {}", u64::MAX)
        }),
    }
}

/// Reads a field that is required or has a default.
pub(super) fn number<'de, T: Integer, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    Whole::deserialize(from).map(|whole| whole.0)
}

/// Reads a field that may be absent or `null`.
pub(super) fn maybe<'de, T: Integer, D: Deserializer<'de>>(from: D) -> Result<Option<T>, D::Error> {
    Ok(Option::<Whole<T>>::deserialize(from)?.map(|whole| whole.0))
}

/// Reads a field in which `null` differs from an absent field.
pub(super) fn present<'de, T: Integer, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Option<T>>, D::Error> {
    maybe(from).map(Some)
}

/// Reads a list.
pub(super) fn list<'de, T: Integer, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    let numbers = Vec::<Whole<T>>::deserialize(from)?;
    Ok(numbers.into_iter().map(|whole| whole.0).collect())
}

/// Reads a list that may be absent or `null`.
pub(super) fn maybe_list<'de, T: Integer, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Vec<T>>, D::Error> {
    let numbers = Option::<Vec<Whole<T>>>::deserialize(from)?;
    Ok(numbers.map(|numbers| numbers.into_iter().map(|whole| whole.0).collect()))
}

impl<'de, T: Integer> Deserialize<'de> for Whole<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        // The visitor is called with the value that is there, also with a float.
        from.deserialize_u64(Reading(PhantomData))
    }
}

struct Reading<T>(PhantomData<T>);

impl<T: Integer> Reading<T> {
    fn refused<E: Error>(written: impl fmt::Display) -> E {
        E::custom(format!("{written} is not a whole number from 0 to {}", T::MAX))
    }
}

impl<T: Integer> Visitor<'_> for Reading<T> {
    type Value = Whole<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a whole number from 0 to {}", T::MAX)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Whole<T>, E> {
        T::try_from(value).map(Whole).map_err(|_| Self::refused(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Whole<T>, E> {
        let value = u64::try_from(value).map_err(|_| Self::refused(value))?;
        self.visit_u64(value)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Whole<T>, E> {
        if value.fract() != 0.0 || !(0.0..T::MAX as f64 + 1.0).contains(&value) {
            return Err(Self::refused(value));
        }
        if value >= EXACT_BELOW {
            return Err(E::custom(format!(
                "{value} may have lost digits; write integers this large without a point or exponent"
            )));
        }
        self.visit_u64(value as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<T: Integer>(text: &str) -> Result<T, String> {
        let mut json = serde_json::Deserializer::from_str(text);
        number(&mut json).map_err(|error| error.to_string())
    }

    #[test]
    fn whole_numbers_are_read_however_they_are_written() {
        for (text, expected) in [
            ("0", 0),
            ("-0", 0),
            ("-0.0", 0),
            ("1.0", 1),
            ("1e3", 1000),
            ("1.5E1", 15),
            ("9007199254740991.0", (1 << 53) - 1),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(read::<u64>(text), Ok(expected), "{text}");
        }
        assert_eq!(read::<u32>("4294967295.0"), Ok(u32::MAX));
    }

    #[test]
    fn everything_else_is_refused_with_the_range() {
        for text in ["1.5", "-1", "-1.0", "1e-3", "1e20", "18446744073709551616", "\"1\"", "true"] {
            let refusal = read::<u64>(text).unwrap_err();
            assert!(refusal.contains("whole number from 0 to 18446744073709551615"), "{refusal}");
        }
        for text in ["4294967296", "4294967296.0"] {
            assert!(read::<u32>(text).unwrap_err().contains("0 to 4294967295"), "{text}");
        }
        assert!(read::<u64>("9007199254740992.0").unwrap_err().contains("without a point"));
    }
}
