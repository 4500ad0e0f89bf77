//! Where the pages with rows are: those a tree leads to, and those it has lost.

use std::ops::RangeInclusive;

use super::cells::{self, LEAF, UPPER};
use super::log::number;
use super::pages::{Page, Pages};

/// SQLite's own table of our tables has fewer pages.
const SCHEMA_PAGES_MAX: usize = 16;

/// What is known of each page. Each is visited once, whatever leads to it.
#[derive(Debug)]
pub struct Marks {
    pages: Vec<Mark>,
    /// Whether all free pages are known to be free.
    pub free_are_known: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    free: bool,
    seen: bool,
}

impl Marks {
    /// Marks the free pages: they still hold rows, but of tasks that are gone.
    pub fn new(pages: &Pages) -> Marks {
        let marks = vec![Mark::default(); pages.last() as usize + 1];
        let mut marks = Marks { pages: marks, free_are_known: false };
        marks.free_are_known = marks.mark_free(pages).is_some();
        marks
    }

    /// The list of free pages: some are links of it, and each of these names many others.
    fn mark_free(&mut self, pages: &Pages) -> Option<()> {
        let first = pages.read(1).filter(|page| page.starts_with(b"SQLite format 3\0"))?;
        let (mut link, mut left) = (number(&first, 32), number(&first, 36));
        while link != 0 {
            self.free(link)?;
            let page = pages.read(link)?;
            let named = number(&page, 4) as usize;
            let named = page[8..].as_chunks::<4>().0.get(..named)?;
            named.iter().try_for_each(|bytes| self.free(u32::from_be_bytes(*bytes)))?;
            left = left.checked_sub(1 + named.len() as u32)?;
            link = number(&page, 0);
        }
        (left == 0).then_some(())
    }

    /// None if there is no such page, or if it was named before.
    fn free(&mut self, number: u32) -> Option<()> {
        let mark = self.pages.get_mut(number as usize)?;
        (number != 0 && !std::mem::replace(&mut mark.free, true)).then_some(())
    }

    /// Whether nobody has been at the page before.
    fn visit(&mut self, number: u32) -> bool {
        let mark = self.pages.get_mut(number as usize);
        number != 0 && mark.is_some_and(|mark| !std::mem::replace(&mut mark.seen, true))
    }

    /// The pages no tree led to and that are not free, if they look like pages with rows.
    pub fn lost<'a>(&'a self, pages: &'a Pages) -> impl Iterator<Item = Page> + 'a {
        let marks = self.pages.iter().enumerate().skip(1);
        marks.filter(|(_, mark)| !mark.seen && !mark.free).filter_map(|(place, _)| {
            let number = u32::try_from(place).ok()?;
            pages.read(number).filter(|page| page[0] == LEAF)
        })
    }
}

/// The first page of a table, by SQLite's own table of them, which begins in the first page.
pub fn root_of(pages: &Pages, table: &str) -> Option<u32> {
    let mut first = pages.read(1).filter(|page| page.starts_with(b"SQLite format 3\0"))?;
    // Before the page's own header stands that of the file. Rows are named by their places in the page, and stay.
    let names = usize::from(u16::from_be_bytes([first[103], first[104]]));
    let end = 112 + 2 * names;
    if end > first.len() {
        return None;
    }
    first.copy_within(100..end, 0);
    let root_in = |page: &Page| cells::rows(page).find_map(|row| row.root_of(table));
    match first[0] {
        LEAF => root_in(&first),
        // It has a few pages, so there are no others between.
        UPPER => {
            let below = cells::below(&first).into_iter().take(SCHEMA_PAGES_MAX);
            let mut leaves = below.filter_map(|(number, _)| pages.read(number));
            leaves.find_map(|page| (page[0] == LEAF).then(|| root_in(&page)).flatten())
        }
        _ => None,
    }
}

/// A way through a tree from its lowest key to its highest.
#[derive(Debug)]
pub struct Walk<'a> {
    pages: &'a Pages,
    marks: &'a mut Marks,
    /// The pages to go to, the next one at the end, and which keys each should have.
    ahead: Vec<(u32, RangeInclusive<i64>)>,
    gaps: Gaps,
}

impl<'a> Walk<'a> {
    pub fn new(pages: &'a Pages, marks: &'a mut Marks, root: u32) -> Self {
        let mut walk = Walk { pages, marks, ahead: Vec::new(), gaps: Gaps::default() };
        walk.plan(root, i64::MIN..=i64::MAX);
        walk
    }

    /// The next page with rows, and whether it is said to be free as well.
    pub fn next_leaf(&mut self) -> Option<(Page, bool)> {
        while let Some((number, keys)) = self.ahead.pop() {
            let Some(page) = self.pages.read(number) else {
                self.gaps.add(keys);
                continue;
            };
            if page[0] == UPPER {
                self.descend(&page, keys);
                continue;
            }
            // A page that is somewhere else in the tree, or not one of it, may hide the right one.
            if page[0] != LEAF || cells::rows(&page).any(|row| !keys.contains(&row.key)) {
                self.gaps.add(keys);
            }
            return Some((page, self.marks.pages[number as usize].free));
        }
        None
    }

    /// The keys that may be in pages it did not come to.
    pub fn gaps(self) -> Gaps {
        self.gaps
    }

    fn descend(&mut self, page: &Page, keys: RangeInclusive<i64>) {
        let mut below = cells::below(page);
        let planned = self.ahead.len();
        let mut low = *keys.start();
        if let Some((_, last)) = below.last_mut() {
            *last = *keys.end();
        }
        for (number, high) in below {
            // Keys that do not grow say nothing about what is below them.
            if high < low || high > *keys.end() {
                self.gaps.add(keys.clone());
                self.plan(number, keys.clone());
                continue;
            }
            self.plan(number, low..=high);
            low = high.saturating_add(1);
        }
        self.ahead[planned..].reverse();
    }

    fn plan(&mut self, number: u32, keys: RangeInclusive<i64>) {
        if self.marks.visit(number) {
            self.ahead.push((number, keys));
        } else {
            self.gaps.add(keys);
        }
    }
}

/// Keys whose rows may be in pages that a tree has lost.
#[derive(Debug, Default)]
pub struct Gaps(Vec<RangeInclusive<i64>>);

impl Gaps {
    pub fn contains(&self, key: i64) -> bool {
        let before = self.0.partition_point(|gap| *gap.start() <= key);
        before > 0 && self.0[before - 1].contains(&key)
    }

    /// Kept in order and apart, so that one look finds the gap of a key.
    fn add(&mut self, keys: RangeInclusive<i64>) {
        let first = self.0.partition_point(|gap| gap.end() < keys.start());
        let behind = self.0.partition_point(|gap| gap.start() <= keys.end()).max(first);
        let touched = &self.0[first..behind];
        let low = touched.first().map_or(*keys.start(), |gap| *gap.start().min(keys.start()));
        let high = touched.last().map_or(*keys.end(), |gap| *gap.end().max(keys.end()));
        self.0.splice(first..behind, [low..=high]);
    }
}
