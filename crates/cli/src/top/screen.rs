//! Draws the screen: a heading, a line for each tube, and the keys.

use super::columns::{Column, ColumnSet, Order, fit, fitting};
use super::sample::Row;
use super::styled::{Color, Line, Style, width as wide};
use super::text::{self, PAUSED, RATES};
use super::view::View;

/// Lines above and below the tubes.
const HEADING: usize = 5;
const FOOTER: usize = 1;

/// The lines of a screen of this size. No size is too small.
pub fn draw(view: &mut View, width: usize, height: usize) -> Vec<Line> {
    let page = height.saturating_sub(HEADING + FOOTER);
    view.limit_scroll(page.saturating_sub(1));
    let mut lines = vec![
        Line::of("taskyard top  ", Style::default().bold()).and(&view.url, Style::default()),
        health(view),
        Line::plain(view.report.as_ref().map(text::totals).unwrap_or_default()),
        Line::plain(view.report.as_ref().map(text::durations).unwrap_or_default()),
        rates(view, width),
    ];
    let mut tubes = tubes(view, width, page);
    tubes.resize(page, Line::default());
    lines.append(&mut tubes);
    lines.push(keys(view));
    lines.truncate(height);
    lines
}

/// Whether the server answers.
fn health(view: &View) -> Line {
    let every = format!("every {:?}", view.interval);
    if let Some(why) = &view.unreachable {
        let text = format!("UNREACHABLE, retrying {every}: {why}");
        return Line::of(text, Style::of(Color::Red).bold());
    }
    if let Some(overdue) = view.overdue {
        let text = format!("no reply for {} s", overdue.as_secs());
        return Line::of(text, Style::of(Color::Yellow));
    }
    match &view.report {
        Some(report) => {
            Line::plain(format!("answered in {}, queried {every}", text::latency(report.latency)))
        }
        None => Line::plain("connecting …"),
    }
}

/// The rates of all tubes together, with bars for those before them.
fn rates(view: &View, width: usize) -> Line {
    let newest = view.report.as_ref().and_then(|report| report.total.rates);
    let part = width / RATES.len();
    let mut line = Line::default();
    for (name, of) in RATES {
        let head = format!("{name} {} ", text::rate(newest.as_ref().map(of)));
        let head = fit(&head, part.min(15), true);
        let past: Vec<f64> = view.history.iter().map(of).collect();
        let bars = text::spark(&past, part.saturating_sub(17).min(40));
        let bars = fit(&bars, part.saturating_sub(15).min(42), true);
        line = line.and(head, Style::default()).and(bars, Style::of(Color::Cyan));
    }
    line
}

/// The titles and a line for each tube, at most so many lines.
fn tubes(view: &View, width: usize, count: usize) -> Vec<Line> {
    let rows = view.rows();
    let name = rows.iter().map(|row| wide(&text::label(row))).max().unwrap_or(0);
    let columns = fitting(width, name, view.choice.columns, view.choice.order);
    let now = view.report.as_ref().map_or(0.0, |report| report.time);
    let mut lines = vec![titles(&columns, view.choice.order)];
    for row in rows.iter().skip(view.scroll).take(count) {
        let line = tube(row, &columns, now);
        lines.push(if view.unreachable.is_some() { line.dimmed() } else { line });
    }
    if rows.is_empty() {
        lines.push(Line::plain(nothing(view)).dimmed());
    }
    lines.truncate(count);
    lines
}

fn nothing(view: &View) -> &'static str {
    match &view.report {
        None => "",
        Some(report) if report.tubes.is_empty() => {
            "no tubes yet; the first put creates one: taskyard put mail hello"
        }
        Some(_) => "no tube name contains this text",
    }
}

fn titles(columns: &[(Column, usize)], order: Order) -> Line {
    let mut line = Line::default();
    for (column, width) in columns {
        let mut title = column.title().to_uppercase();
        let bold = *column == order.column;
        if bold {
            // The mark of a number is in the space before it, that of a text after it.
            let at = if column.is_text() { title.len() } else { 0 };
            title.insert(at, order.mark());
        }
        let style = Style { reversed: true, bold, ..Style::default() };
        line = line.and(align(*column, &title, *width), style);
    }
    line
}

fn tube(row: &Row, columns: &[(Column, usize)], now: f64) -> Line {
    columns.iter().fold(Line::default(), |line, (column, width)| {
        let text = match column {
            Column::Tube => named(row, *width),
            column => align(*column, &text::cell(row, *column, now), *width),
        };
        line.and(text, style(row, *column))
    })
}

/// A text in the width of its column.
fn align(column: Column, text: &str, width: usize) -> String {
    match column {
        Column::Tube => fit(text, width, true),
        // A space keeps it from the name.
        Column::Kind => fit(&format!(" {text}"), width, true),
        _ => fit(text, width, false),
    }
}

/// The name, cut so that the mark of a paused tube can still be seen.
fn named(row: &Row, width: usize) -> String {
    let mark = if row.paused { PAUSED } else { "" };
    if width <= mark.len() {
        return fit(&text::label(row), width, true);
    }
    let name = text::shown(&row.name);
    let room = wide(&name).min(width - mark.len());
    fit(&(fit(&name, room, true) + mark), width, true)
}

fn style(row: &Row, column: Column) -> Style {
    match column {
        Column::Tube if row.paused => Style::of(Color::Yellow),
        Column::Tube => Style::default().bold(),
        Column::Buried if row.tasks.buried > 0 => Style::of(Color::Red),
        _ => Style::default(),
    }
}

/// The last line: the filter while it is typed, otherwise the keys.
fn keys(view: &View) -> Line {
    let filter = text::shown(&view.choice.filter);
    let (usual, bold) = (Style::default(), Style::default().bold());
    if view.typing {
        let hint = Style { dim: true, ..usual };
        let line = Line::of("filter: ", bold).and(filter, usual).and("_", usual);
        return line.and("  Enter keeps it, Esc removes it", hint);
    }
    let mut line = Line::default();
    if !filter.is_empty() {
        line = line.and(format!("filter: {filter}  "), bold);
    }
    let other = match view.choice.columns {
        ColumnSet::Counts => "times",
        ColumnSet::Times => "counts",
    };
    let keys = format!("q quit  / filter  ←→ order by  r reverse  t {other}  ↑↓ scroll");
    line = line.and(keys, usual);
    let rows = view.rows().len();
    if view.scroll > 0 {
        line = line.and(format!("  from {} of {rows}", view.scroll + 1), usual);
    }
    line
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use taskyard::HttpError;
    use taskyard_wire::http::DurationsAnswer;

    use super::super::keys::Key;
    use super::super::sample::{Durations, Observation, Rates};
    use super::super::view::Choice;
    use super::super::view::tests::{press, view};
    use super::*;

    /// What a terminal of this size shows.
    fn screen(view: &mut View, width: usize, height: usize) -> Vec<String> {
        let lines = draw(view, width, height);
        lines.iter().map(|line| line.text(width).trim_end().to_owned()).collect()
    }

    #[test]
    fn the_whole_screen() {
        let mut view = view(&["mail", "sms"]);
        let report = view.report.as_mut().unwrap();
        report.tubes[0].paused = true;
        report.tubes[1].next_wakeup = Some(report.time + 90.0);
        let times = |p50| Some(DurationsAnswer { p50, p90: 1.5, p99: 7_200.0 });
        report.tubes[1].durations = Durations { wait: times(0.0), run: times(0.52) };
        let shown = screen(&mut view, 162, 9);
        assert_eq!(
            shown,
            [
                "taskyard top  http://127.0.0.1:7070",
                "answered in 0.8 ms, queried every 1s",
                "2 tubes: 31 ready, 0 taken, 0 delayed, 0 buried, 30 done; 4 waiting",
                "wait p50 -, p99 -; run p50 -, p99 -; fail/s -",
                "put/s 40       █                                      take/s 20      █                                      \
                 ack/s 20       █",
                "TUBE▲         KIND         READY   TAKEN DELAYED  BURIED    DONE WAITING   PUT/S  \
                 TAKE/S   ACK/S  FAIL/S WAIT P50 WAIT P90 WAIT P99 RUN P50 RUN P90 RUN P99   WAKE",
                "mail (paused) fifottl         15       0       0       0      15       2      \
                 20      10      10       -        -        -        -       -       -       -      -",
                "sms           fifottl         16       0       0       0      15       2      \
                 20      10      10       -   0.0 ms    1.5 s       2h  520 ms   1.5 s      2h     1m",
                "q quit  / filter  ←→ order by  r reverse  t times  ↑↓ scroll",
            ]
        );
    }

    #[test]
    fn eighty_columns_are_enough_for_the_counts_and_the_rates() {
        let shown = screen(&mut view(&["mail"]), 80, 8);
        let titles =
            "TUBE▲    READY   TAKEN DELAYED  BURIED WAITING   PUT/S  TAKE/S   ACK/S  FAIL/S";
        assert_eq!(shown[5], titles);
    }

    #[test]
    fn a_key_shows_the_times_of_each_tube_in_eighty_columns() {
        let mut view = view(&["mail", "sms"]);
        let wait = Some(DurationsAnswer { p50: 0.0042, p90: 0.9, p99: 99.4 });
        let run = Some(DurationsAnswer { p50: 1.25, p90: 100.0, p99: 7_200.0 });
        view.report.as_mut().unwrap().tubes[1].durations = Durations { wait, run };
        press(&mut view, "t");
        let shown = screen(&mut view, 80, 9);
        assert_eq!(
            shown[5..],
            [
                "TUBE▲    READY   TAKEN WAIT P50 WAIT P90 WAIT P99 RUN P50 RUN P90 RUN P99",
                "mail        15       0        -        -        -       -       -       -",
                "sms         16       0   4.2 ms   900 ms   99.4 s   1.2 s      1m      2h",
                "q quit  / filter  ←→ order by  r reverse  t counts  ↑↓ scroll",
            ]
        );
        press(&mut view, "t");
        assert!(screen(&mut view, 80, 9)[5].ends_with("FAIL/S"));
    }

    // The percentiles were at the end of the line of totals, which 80 columns cut.
    #[test]
    fn eighty_columns_are_enough_for_the_percentiles() {
        let mut view = view(&["mail"]);
        let total = &mut view.report.as_mut().unwrap().total;
        let long = Some(DurationsAnswer { p50: 0.5234, p90: 1.0, p99: 99.4 });
        total.durations = Durations { wait: long, run: long };
        total.rates = Some(Rates { fail: Some(12_345.6), ..Rates::default() });
        let shown = screen(&mut view, 80, 8);
        assert_eq!(
            shown[3],
            "wait p50 523 ms, p99 99.4 s; run p50 523 ms, p99 99.4 s; fail/s 12346"
        );
    }

    #[test]
    fn no_size_is_too_small() {
        let mut view =
            view(&["mail", "a name that is rather long, as names sometimes are", "郵便"]);
        view.report.as_mut().unwrap().tubes[1].paused = true;
        for width in 0..40 {
            for height in 0..8 {
                screen(&mut view, width, height);
            }
        }
    }

    #[test]
    fn a_long_name_is_cut_and_its_mark_is_not() {
        let mut view = view(&["a name that is rather long, as names sometimes are"]);
        view.report.as_mut().unwrap().tubes[0].paused = true;
        let shown = screen(&mut view, 60, 8);
        assert!(shown[6].starts_with("a name tha… (paused)   "), "{shown:?}");
    }

    #[test]
    fn names_with_control_characters_are_escaped() {
        let shown = screen(&mut view(&["a\u{1b}[31mb\nc"]), 120, 8);
        assert!(shown[6].starts_with(r"a\u{1b}[31mb\u{a}c "), "{shown:?}");
    }

    #[test]
    fn an_unreachable_server_is_shown_and_the_last_numbers_stay() {
        let mut view = view(&["mail"]);
        let why = "connection refused".to_owned();
        view.update(Observation::Unreachable(HttpError::Unreachable {
            url: "http://x".into(),
            why,
        }));
        let shown = screen(&mut view, 100, 8);
        let status = "UNREACHABLE, retrying every 1s: connection refused";
        assert_eq!(shown[1], status);
        assert!(shown[6].starts_with("mail"));
        let mut first = View::new("http://x".into(), Duration::from_secs(1), Choice::default());
        assert_eq!(screen(&mut first, 100, 8)[1], "connecting …");
        first.overdue = Some(Duration::from_secs(3));
        assert_eq!(screen(&mut first, 100, 8)[1], "no reply for 3 s");
    }

    #[test]
    fn more_tubes_than_lines_are_scrolled() {
        let names: Vec<String> = (0..30).map(|nth| format!("tube-{nth:02}")).collect();
        let mut view = view(&names.iter().map(String::as_str).collect::<Vec<_>>());
        screen(&mut view, 100, 11);
        view.press(Key::PageDown);
        let shown = screen(&mut view, 100, 11);
        assert!(shown[6].starts_with("tube-04"), "{shown:?}");
        assert!(shown[10].ends_with("from 5 of 30"), "{shown:?}");
    }

    #[test]
    fn the_filter_is_shown_while_it_is_typed_and_after() {
        let mut view = view(&["mail", "sms"]);
        press(&mut view, "/sm");
        assert!(screen(&mut view, 100, 9)[8].starts_with("filter: sm_  Enter"));
        press(&mut view, "x\n");
        let shown = screen(&mut view, 100, 9);
        assert_eq!(shown[6], "no tube name contains this text");
        assert!(shown[8].starts_with("filter: smx  q quit"));
    }

    #[test]
    fn the_order_is_marked() {
        let mut view = view(&["mail", "sms"]);
        press(&mut view, ">>");
        let shown = screen(&mut view, 120, 9);
        assert!(shown[5].contains(" ▼READY ") && shown[6].starts_with("sms"), "{shown:?}");
        press(&mut view, "r");
        let shown = screen(&mut view, 120, 9);
        assert!(shown[5].contains(" ▲READY ") && shown[6].starts_with("mail"), "{shown:?}");
    }
}
