//! Finds the pages with rows: those in a tree, and those that the tree has lost.

use std::ops::RangeInclusive;

use super::cells::{self, INTERIOR, LEAF};
use super::log::number;
use super::pages::{Page, Pages};

/// Maximum number of pages of SQLite's schema table.
const SCHEMA_PAGES_MAX: usize = 16;

/// PageMarks for each page. Each page is visited once, even if several pages refer to it.
#[derive(Debug)]
pub struct PageMarks {
    pages: Vec<PageMark>,
    /// Whether the list of free pages is intact.
    pub free_are_known: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct PageMark {
    free: bool,
    seen: bool,
}

impl PageMarks {
    /// PageMarks the free pages: they still contain rows, but of deleted tasks.
    pub fn new(pages: &Pages) -> PageMarks {
        let marks = vec![PageMark::default(); pages.last() as usize + 1];
        let mut marks = PageMarks { pages: marks, free_are_known: false };
        marks.free_are_known = marks.mark_free(pages).is_some();
        marks
    }

    /// Follows the list of free pages: some are nodes of the list, and each node names many others.
    fn mark_free(&mut self, pages: &Pages) -> Option<()> {
        let first = pages.read(1).filter(|page| page.starts_with(b"SQLite format 3\0"))?;
        let (mut node, mut left) = (number(&first, 32), number(&first, 36));
        while node != 0 {
            self.free(node)?;
            let page = pages.read(node)?;
            let named = number(&page, 4) as usize;
            let named = page[8..].as_chunks::<4>().0.get(..named)?;
            named.iter().try_for_each(|bytes| self.free(u32::from_be_bytes(*bytes)))?;
            left = left.checked_sub(1 + named.len() as u32)?;
            node = number(&page, 0);
        }
        (left == 0).then_some(())
    }

    /// PageMarks a page as free; `None` if it does not exist or was marked before.
    fn free(&mut self, number: u32) -> Option<()> {
        let mark = self.pages.get_mut(number as usize)?;
        (number != 0 && !std::mem::replace(&mut mark.free, true)).then_some(())
    }

    /// PageMarks a page as visited; returns whether it exists and was not visited before.
    fn visit(&mut self, number: u32) -> bool {
        let mark = self.pages.get_mut(number as usize);
        number != 0 && mark.is_some_and(|mark| !std::mem::replace(&mut mark.seen, true))
    }

    /// The leaf pages that are in no tree and not free.
    pub fn unreached<'a>(&'a self, pages: &'a Pages) -> impl Iterator<Item = Page> + 'a {
        let marks = self.pages.iter().enumerate().skip(1);
        marks.filter(|(_, mark)| !mark.seen && !mark.free).filter_map(|(index, _)| {
            let number = u32::try_from(index).ok()?;
            pages.read(number).filter(|page| page[0] == LEAF)
        })
    }
}

/// The root page of a table.
pub fn root_of(pages: &Pages, table: &str) -> Option<u32> {
    roots_of(pages, [table])[0]
}

/// The root pages of tables, from SQLite's schema table, which begins in the first page.
pub fn roots_of<const N: usize>(pages: &Pages, tables: [&str; N]) -> [Option<u32>; N] {
    let leaves = schema_leaves(pages).unwrap_or_default();
    tables.map(|table| {
        leaves.iter().find_map(|page| cells::rows(page).find_map(|row| row.root_of(table)))
    })
}

fn schema_leaves(pages: &Pages) -> Option<Vec<Page>> {
    let mut first = pages.read(1).filter(|page| page.starts_with(b"SQLite format 3\0"))?;
    // The header of the file precedes the header of the first page. The offsets of rows are relative to the
    // page and stay valid.
    let names = usize::from(u16::from_be_bytes([first[103], first[104]]));
    let end = 112 + 2 * names;
    if end > first.len() {
        return None;
    }
    first.copy_within(100..end, 0);
    match first[0] {
        LEAF => Some(vec![first]),
        // The table has a few pages, so its children are leaves.
        INTERIOR => {
            let children = cells::children(&first).into_iter().take(SCHEMA_PAGES_MAX);
            let leaves = children.filter_map(|(number, _)| pages.read(number));
            Some(leaves.filter(|page| page[0] == LEAF).collect())
        }
        _ => None,
    }
}

/// Walks through a tree from its lowest key to its highest.
#[derive(Debug)]
pub struct TreeWalk<'a> {
    pages: &'a Pages,
    marks: &'a mut PageMarks,
    /// The pages to visit, the next one last, with the range of keys that each should have.
    ahead: Vec<(u32, RangeInclusive<i64>)>,
    gaps: KeyGaps,
}

impl<'a> TreeWalk<'a> {
    pub fn new(pages: &'a Pages, marks: &'a mut PageMarks, root: u32) -> Self {
        let mut walk = TreeWalk { pages, marks, ahead: Vec::new(), gaps: KeyGaps::default() };
        walk.plan(root, i64::MIN..=i64::MAX);
        walk
    }

    /// The next leaf page, and whether the list of free pages has it too.
    pub fn next_leaf(&mut self) -> Option<(Page, bool)> {
        while let Some((number, keys)) = self.ahead.pop() {
            let Some(page) = self.pages.read(number) else {
                self.gaps.add(keys);
                continue;
            };
            if page[0] == INTERIOR {
                self.descend(&page, keys);
                continue;
            }
            // A page from elsewhere may be in the place of the right one.
            if page[0] != LEAF || cells::rows(&page).any(|row| !keys.contains(&row.key)) {
                self.gaps.add(keys);
            }
            return Some((page, self.marks.pages[number as usize].free));
        }
        None
    }

    /// The keys that may be in pages which the walk did not reach.
    pub fn gaps(self) -> KeyGaps {
        self.gaps
    }

    fn descend(&mut self, page: &Page, keys: RangeInclusive<i64>) {
        let mut children = cells::children(page);
        let planned = self.ahead.len();
        let mut low = *keys.start();
        if let Some((_, last)) = children.last_mut() {
            *last = *keys.end();
        }
        for (number, high) in children {
            // Keys that are out of order do not limit the keys of the children.
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

/// Ranges of keys whose rows may be in pages that a tree has lost.
#[derive(Debug, Default)]
pub struct KeyGaps(Vec<RangeInclusive<i64>>);

impl KeyGaps {
    pub fn contains(&self, key: i64) -> bool {
        let before = self.0.partition_point(|gap| *gap.start() <= key);
        before > 0 && self.0[before - 1].contains(&key)
    }

    /// Adds a range. The ranges stay sorted and disjoint, for a binary search.
    fn add(&mut self, keys: RangeInclusive<i64>) {
        let first = self.0.partition_point(|gap| gap.end() < keys.start());
        let behind = self.0.partition_point(|gap| gap.start() <= keys.end()).max(first);
        let touched = &self.0[first..behind];
        let low = touched.first().map_or(*keys.start(), |gap| *gap.start().min(keys.start()));
        let high = touched.last().map_or(*keys.end(), |gap| *gap.end().max(keys.end()));
        self.0.splice(first..behind, [low..=high]);
    }
}
