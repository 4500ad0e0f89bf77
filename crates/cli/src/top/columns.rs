//! Defines the columns: their values, the order of tubes by them, and which ones fit on a line.

use std::cmp::Ordering;

use clap::ValueEnum;

use super::sample::{Durations, Rates, Row};
use super::styled::width as wide;

/// The columns, from left to right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Column {
    Tube,
    Kind,
    Ready,
    Taken,
    Delayed,
    Buried,
    Done,
    Waiting,
    Put,
    Take,
    Ack,
    Fail,
    WaitP50,
    WaitP90,
    WaitP99,
    RunP50,
    RunP90,
    RunP99,
    Wake,
}

use Column::{
    Ack, Buried, Delayed, Done, Fail, Kind, Put, Ready, RunP50, RunP90, RunP99, Take, Taken, Tube,
    WaitP50, WaitP90, WaitP99, Waiting, Wake,
};

impl Column {
    /// All of them, from left to right.
    pub const ALL: [Column; 19] = [
        Tube, Kind, Ready, Taken, Delayed, Buried, Done, Waiting, Put, Take, Ack, Fail, WaitP50,
        WaitP90, WaitP99, RunP50, RunP90, RunP99, Wake,
    ];

    /// Its title.
    pub const fn title(self) -> &'static str {
        match self {
            Tube => "tube",
            Kind => "kind",
            Ready => "ready",
            Taken => "taken",
            Delayed => "delayed",
            Buried => "buried",
            Done => "done",
            Waiting => "waiting",
            Put => "put/s",
            Take => "take/s",
            Ack => "ack/s",
            Fail => "fail/s",
            WaitP50 => "wait p50",
            WaitP90 => "wait p90",
            WaitP99 => "wait p99",
            RunP50 => "run p50",
            RunP90 => "run p90",
            RunP99 => "run p99",
            Wake => "wake",
        }
    }

    /// The next one to the right, or to the left; the last one is followed by itself.
    pub fn beside(self, right: bool) -> Column {
        let at = Column::ALL.iter().position(|column| *column == self).unwrap_or(0);
        let at = if right { at + 1 } else { at.saturating_sub(1) };
        Column::ALL.get(at).copied().unwrap_or(self)
    }

    /// Whether it is aligned to the left.
    pub const fn is_text(self) -> bool {
        matches!(self, Tube | Kind)
    }

    /// Its width, with a space before it that the mark of the order may use.
    const fn width(self) -> usize {
        match self {
            Kind => 11,
            WaitP50 | WaitP90 | WaitP99 => 9,
            Wake => 7,
            _ => 8,
        }
    }

    /// The number of a row in this column; none where it is unknown.
    pub fn number(self, row: &Row) -> Option<f64> {
        let rate = |rate: fn(Rates) -> f64| row.rates.map(rate);
        let Durations { wait, run } = row.durations;
        match self {
            Tube | Kind => None,
            Ready => Some(row.tasks.ready as f64),
            Taken => Some(row.tasks.taken as f64),
            Delayed => Some(row.tasks.delayed as f64),
            Buried => Some(row.tasks.buried as f64),
            Done => Some(row.tasks.done as f64),
            Waiting => Some(row.consumers as f64),
            Put => rate(|rates| rates.put),
            Take => rate(|rates| rates.take),
            Ack => rate(|rates| rates.ack),
            Fail => row.rates.and_then(|rates| rates.fail),
            WaitP50 => wait.map(|wait| wait.p50),
            WaitP90 => wait.map(|wait| wait.p90),
            WaitP99 => wait.map(|wait| wait.p99),
            RunP50 => run.map(|run| run.p50),
            RunP90 => run.map(|run| run.p90),
            RunP99 => run.map(|run| run.p99),
            Wake => row.next_wakeup,
        }
    }
}

/// How the tubes are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    pub column: Column,
    /// Names begin with the last, numbers with the smallest, moments with the latest.
    pub reversed: bool,
}

impl Order {
    /// The arrow that marks the column: where the larger ones are.
    pub const fn mark(self) -> char {
        let grows = self.column.is_text() || matches!(self.column, Wake);
        if grows == self.reversed { '▼' } else { '▲' }
    }
}

/// Sorts the tubes. Equal ones are ordered by name; unknown values are last.
pub fn sort(rows: &mut [&Row], order: Order) {
    rows.sort_by(|one, other| {
        let by_column = match order.column {
            Tube => flip(one.name.cmp(&other.name), order.reversed),
            Kind => flip(one.kind.cmp(other.kind), order.reversed),
            column => by_number(column.number(one), column.number(other), order),
        };
        by_column.then_with(|| one.name.cmp(&other.name))
    });
}

fn by_number(one: Option<f64>, other: Option<f64>, order: Order) -> Ordering {
    match (one, other) {
        // The soonest deadline is first, and so is the largest number.
        (Some(one), Some(other)) => {
            flip(one.total_cmp(&other), order.reversed != (order.column != Wake))
        }
        (one, other) => other.is_some().cmp(&one.is_some()),
    }
}

const fn flip(order: Ordering, reversed: bool) -> Ordering {
    if reversed { order.reverse() } else { order }
}

/// Which columns are shown where there is no space for all: tasks by state and rates, or how long
/// tasks waited and ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ColumnSet {
    #[default]
    Counts,
    Times,
}

impl ColumnSet {
    /// The other one.
    pub const fn other(self) -> ColumnSet {
        match self {
            ColumnSet::Counts => ColumnSet::Times,
            ColumnSet::Times => ColumnSet::Counts,
        }
    }

    /// Which columns are left out first when the screen is narrow.
    const fn dropped(self) -> [Column; 18] {
        match self {
            ColumnSet::Counts => [
                RunP99, WaitP99, Kind, Wake, Done, RunP90, WaitP90, RunP50, WaitP50, Waiting,
                Delayed, Fail, Buried, Ack, Take, Put, Taken, Ready,
            ],
            ColumnSet::Times => [
                Kind, Wake, Done, Waiting, Delayed, Buried, Put, Fail, Ack, Take, Taken, Ready,
                RunP99, WaitP99, RunP90, WaitP90, RunP50, WaitP50,
            ],
        }
    }

    /// The columns of a printed table.
    pub const fn printed(self) -> &'static [Column] {
        match self {
            ColumnSet::Counts => &[
                Tube, Kind, Ready, Taken, Delayed, Buried, Done, Waiting, Put, Take, Ack, Fail,
                Wake,
            ],
            ColumnSet::Times => &[
                Tube, Ready, Taken, Take, Ack, Fail, WaitP50, WaitP90, WaitP99, RunP50, RunP90,
                RunP99,
            ],
        }
    }
}

/// A name longer than this removes no other column.
const NAME_KEPT: usize = 20;
/// The minimum width of a name.
const NAME_MIN: usize = 6;

/// The columns of a screen so many cells wide, with their widths. The one that orders stays.
pub fn fitting(width: usize, name: usize, set: ColumnSet, order: Order) -> Vec<(Column, usize)> {
    let name = name.max(NAME_MIN);
    let mut columns = Column::ALL.to_vec();
    let others = |columns: &[Column]| -> usize {
        columns.iter().filter(|column| **column != Tube).map(|column| column.width()).sum()
    };
    for dropped in set.dropped().into_iter().filter(|dropped| *dropped != order.column) {
        if others(&columns) + name.min(NAME_KEPT) <= width {
            break;
        }
        columns.retain(|column| *column != dropped);
    }
    let room = width.saturating_sub(others(&columns));
    let sized = |column: Column| if column == Tube { room.min(name) } else { column.width() };
    columns.into_iter().map(|column| (column, sized(column))).collect()
}

/// The text cut or filled up to exactly this width. What is cut ends with a mark.
pub fn fit(text: &str, width: usize, to_left: bool) -> String {
    let mut cut = text.to_owned();
    if wide(text) > width {
        while !cut.is_empty() && wide(&cut) + 1 > width {
            cut.pop();
        }
        cut.extend((width > 0).then_some('…'));
    }
    let gap = " ".repeat(width.saturating_sub(wide(&cut)));
    if to_left { cut + &gap } else { gap + &cut }
}

#[cfg(test)]
mod tests {
    use taskyard_wire::http::DurationsAnswer;

    use super::super::sample::tests::{report, tube};
    use super::*;

    fn names(order: Order, rows: &[Row]) -> String {
        let mut rows: Vec<&Row> = rows.iter().collect();
        sort(&mut rows, order);
        rows.iter().map(|row| row.name.as_str()).collect()
    }

    fn three() -> Vec<Row> {
        let old = vec![tube(1, "b", [0; 3]), tube(2, "a", [0; 3])];
        let new = vec![tube(1, "b", [5, 0, 0]), tube(2, "a", [5, 4, 0]), tube(3, "c", [7, 0, 0])];
        report(1000, [old, new]).tubes
    }

    #[test]
    fn names_grow_numbers_shrink_equals_go_by_name_and_the_unknown_is_last() {
        let rows = three();
        for (column, straight, reversed) in [
            (Tube, "abc", "cba"),
            (Kind, "abc", "abc"),
            (Ready, "cba", "abc"),
            (Taken, "abc", "bca"),
            (Put, "abc", "abc"),
            (Take, "abc", "bac"),
            (WaitP90, "abc", "abc"),
            (Wake, "abc", "abc"),
        ] {
            assert_eq!(names(Order { column, reversed: false }, &rows), straight, "{column:?}");
            assert_eq!(names(Order { column, reversed: true }, &rows), reversed, "{column:?}");
        }
    }

    #[test]
    fn the_soonest_wakeup_comes_first() {
        let mut rows = three();
        rows[0].next_wakeup = Some(30.0);
        rows[2].next_wakeup = Some(20.0);
        assert_eq!(names(Order { column: Wake, reversed: false }, &rows), "cba");
        assert_eq!(names(Order { column: Wake, reversed: true }, &rows), "bca");
    }

    #[test]
    fn the_slowest_tube_comes_first_and_one_without_deliveries_last() {
        let mut rows = three();
        let times = |p90| Some(DurationsAnswer { p50: 0.5, p90, p99: 9.0 });
        rows[0].durations.wait = times(1.0);
        rows[2].durations.wait = times(2.0);
        assert_eq!(names(Order { column: WaitP90, reversed: false }, &rows), "cba");
        assert_eq!(names(Order { column: WaitP90, reversed: true }, &rows), "bca");
        assert_eq!(names(Order { column: RunP90, reversed: false }, &rows), "abc");
    }

    #[test]
    fn a_column_ends_at_the_edges() {
        assert_eq!((Tube.beside(false), Tube.beside(true)), (Tube, Kind));
        assert_eq!((Wake.beside(true), Wake.beside(false)), (Wake, RunP99));
    }

    #[test]
    fn a_narrow_screen_has_fewer_columns_and_is_never_overrun() {
        for (column, set) in Column::ALL
            .into_iter()
            .flat_map(|column| [ColumnSet::Counts, ColumnSet::Times].map(|set| (column, set)))
        {
            let order = Order { column, reversed: false };
            for width in 0..200 {
                let columns = fitting(width, 30, set, order);
                let used: usize = columns.iter().map(|(_, width)| width).sum();
                let least = if column == Tube { 0 } else { column.width() };
                assert!(used <= width.max(least), "{width} {columns:?}");
                assert!(columns.iter().any(|(shown, _)| *shown == column));
            }
        }
    }

    #[test]
    fn what_matters_most_stays_on_a_narrow_screen() {
        let shown = |width, set| -> Vec<Column> {
            let order = Order { column: Tube, reversed: false };
            fitting(width, 8, set, order).into_iter().map(|(column, _)| column).collect()
        };
        for set in [ColumnSet::Counts, ColumnSet::Times] {
            assert_eq!(shown(200, set), Column::ALL);
        }
        let counts = [Tube, Ready, Taken, Delayed, Buried, Waiting, Put, Take, Ack, Fail];
        assert_eq!(shown(80, ColumnSet::Counts), counts);
        let more = [&counts[..], &[WaitP50, WaitP90, RunP50, RunP90]].concat();
        assert_eq!(shown(120, ColumnSet::Counts), more);
        let times = [Tube, Ready, Taken, WaitP50, WaitP90, WaitP99, RunP50, RunP90, RunP99];
        assert_eq!(shown(80, ColumnSet::Times), times);
    }

    #[test]
    fn texts_are_cut_by_what_they_take_on_the_screen() {
        assert_eq!(fit("mail", 6, true), "mail  ");
        assert_eq!(fit("7", 3, false), "  7");
        assert_eq!(fit("letters", 5, true), "lett…");
        assert_eq!(fit("郵便局", 5, true), "郵便…");
        assert_eq!(fit("郵便局", 4, true), "郵… ");
        assert_eq!(fit("mail", 0, true), "");
    }
}
