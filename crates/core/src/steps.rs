//! Counts the steps of searches in tests, so that a test notices a search whose cost grows with the number of tasks.

/// Counts steps of a search. Does nothing outside of the tests of this crate.
#[inline]
pub(crate) fn count(steps: usize) {
    #[cfg(test)]
    COUNTED.with(|counted| counted.set(counted.get() + steps));
    #[cfg(not(test))]
    let _ = steps;
}

#[cfg(test)]
thread_local! {
    static COUNTED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The steps of everything that a closure searches.
#[cfg(test)]
pub(crate) fn of<T>(search: impl FnOnce() -> T) -> (usize, T) {
    let before = COUNTED.with(std::cell::Cell::get);
    let found = search();
    (COUNTED.with(std::cell::Cell::get) - before, found)
}
