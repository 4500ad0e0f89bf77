//! The screen: a heading, a line for each tube, and the keys.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize};
use ratatui::text::{Line, Span};

use super::columns::{Column, Order, fit, fitting};
use super::sample::Row;
use super::text::{self, PAUSED, RATES};
use super::view::View;

/// Draws everything. No size of the screen is too small.
pub fn draw(frame: &mut Frame<'_>, view: &mut View) {
    let parts = [Constraint::Length(4), Constraint::Min(0), Constraint::Length(1)];
    let [heading, tubes, footer] = Layout::vertical(parts).areas(frame.area());
    view.settle(usize::from(tubes.height.saturating_sub(1)));
    draw_heading(frame, heading, view);
    draw_tubes(frame, tubes, view);
    frame.render_widget(keys(view), footer);
}

fn draw_heading(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let mut lines = vec![Line::from(vec!["taskyard top  ".bold(), view.url.as_str().into()])];
    lines.push(health(view));
    lines.push(Line::from(view.report.as_ref().map(text::totals).unwrap_or_default()));
    lines.push(rates(view, usize::from(area.width)));
    for (line, row) in lines.into_iter().zip(area.rows()) {
        frame.render_widget(line, row);
    }
}

/// Whether the server answers.
fn health(view: &View) -> Line<'_> {
    let every = format!("every {:?}", view.interval);
    if let Some(why) = &view.away {
        return Line::from(format!("AWAY, trying again {every}: {why}")).red().bold();
    }
    if let Some(overdue) = view.overdue {
        return Line::from(format!("no answer for {} s", overdue.as_secs())).yellow();
    }
    match &view.report {
        Some(report) => {
            Line::from(format!("answered in {}, asked {every}", text::latency(report.latency)))
        }
        None => Line::from("asking …"),
    }
}

/// The rates of all tubes together, with bars for those before them.
fn rates(view: &View, width: usize) -> Line<'_> {
    let newest = view.report.as_ref().and_then(|report| report.total.rates);
    let part = width / RATES.len();
    let mut line = Line::default();
    for (name, of) in RATES {
        let head = format!("{name} {} ", text::rate(newest.as_ref().map(of)));
        let head = fit(&head, part.min(15), true);
        let past: Vec<f64> = view.history.iter().map(of).collect();
        let bars = text::spark(&past, part.saturating_sub(17).min(40));
        line.push_span(Span::raw(head));
        line.push_span(Span::raw(fit(&bars, part.saturating_sub(15).min(42), true)).cyan());
    }
    line
}

fn draw_tubes(frame: &mut Frame<'_>, area: Rect, view: &View) {
    let rows = view.rows();
    let name = rows.iter().map(|row| Span::raw(text::label(row)).width()).max().unwrap_or(0);
    let columns = fitting(usize::from(area.width), name, view.choice.order);
    let now = view.report.as_ref().map_or(0.0, |report| report.time);
    let mut places = area.rows();
    if let Some(place) = places.next() {
        frame.render_widget(titles(&columns, view.choice.order), place);
    }
    for (row, place) in rows.iter().skip(view.scroll).zip(&mut places) {
        let mut line = tube(row, &columns, now);
        if view.away.is_some() {
            line = line.dim();
        }
        frame.render_widget(line, place);
    }
    if rows.is_empty()
        && let Some(place) = places.next()
    {
        frame.render_widget(Line::from(nothing(view)).dim(), place);
    }
}

fn nothing(view: &View) -> &'static str {
    match &view.report {
        None => "",
        Some(report) if report.tubes.is_empty() => {
            "no tubes yet; the first put makes one: taskyard put mail hello"
        }
        Some(_) => "no tube has this in its name",
    }
}

fn titles(columns: &[(Column, usize)], order: Order) -> Line<'static> {
    let title = |(column, width): &(Column, usize)| {
        let mut title = column.title().to_uppercase();
        if *column == order.column {
            // A number's mark stands in the space before it, a text's mark after it.
            let at = if column.is_text() { title.len() } else { 0 };
            title.insert(at, order.mark());
        }
        let span = Span::raw(place(*column, &title, *width)).reversed();
        if *column == order.column { span.bold() } else { span }
    };
    Line::from(columns.iter().map(title).collect::<Vec<_>>())
}

fn tube(row: &Row, columns: &[(Column, usize)], now: f64) -> Line<'static> {
    let cell = |(column, width): &(Column, usize)| {
        let text = match column {
            Column::Tube => named(row, *width),
            column => place(*column, &text::cell(row, *column, now), *width),
        };
        Span::styled(text, style(row, *column))
    };
    Line::from(columns.iter().map(cell).collect::<Vec<_>>())
}

/// A text in the room of its column.
fn place(column: Column, text: &str, width: usize) -> String {
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
    let room = Span::raw(name.as_str()).width().min(width - mark.len());
    fit(&(fit(&name, room, true) + mark), width, true)
}

fn style(row: &Row, column: Column) -> Style {
    match column {
        Column::Tube if row.paused => Style::new().yellow(),
        Column::Tube => Style::new().bold(),
        Column::Buried if row.tasks.buried > 0 => Style::new().red(),
        _ => Style::new(),
    }
}

/// The last line: the filter while it is written, otherwise what the keys do.
fn keys(view: &View) -> Line<'_> {
    let filter = text::shown(&view.choice.filter);
    if view.typing {
        let hint = "  Enter keeps it, Esc takes it away".dim();
        return Line::from(vec!["filter: ".bold(), filter.into(), "_".into(), hint]);
    }
    let mut line = Line::default();
    if !filter.is_empty() {
        line.push_span(Span::raw(format!("filter: {filter}  ")).bold());
    }
    line.push_span(Span::raw("q quit  / filter  ←→ order by  r reverse  ↑↓ scroll"));
    let rows = view.rows().len();
    if view.scroll > 0 {
        line.push_span(Span::raw(format!("  from {} of {rows}", view.scroll + 1)));
    }
    line
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyCode;
    use taskyard::HttpError;

    use super::super::sample::Seen;
    use super::super::view::Choice;
    use super::super::view::tests::{press, view};
    use super::*;

    /// What a terminal of this size shows.
    fn screen(view: &mut View, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, view)).unwrap();
        let buffer = terminal.backend().buffer();
        let rows = buffer.content().chunks(usize::from(width).max(1));
        let line = |row: &[ratatui::buffer::Cell]| -> String {
            row.iter().map(ratatui::buffer::Cell::symbol).collect()
        };
        rows.map(|row| line(row).trim_end().to_owned()).collect()
    }

    #[test]
    fn the_whole_screen() {
        let mut view = view(&["mail", "sms"]);
        let report = view.report.as_mut().unwrap();
        report.tubes[0].paused = true;
        report.tubes[1].next_wakeup = Some(report.time + 90.0);
        let shown = screen(&mut view, 120, 8);
        assert_eq!(
            shown,
            [
                "taskyard top  http://127.0.0.1:7070",
                "answered in 0.8 ms, asked every 1s",
                "2 tubes: 31 ready, 0 taken, 0 delayed, 0 buried, 30 done; 4 waiting",
                "put/s 40       █                        take/s 20      █                        \
                 ack/s 20       █",
                "TUBE▲         KIND         READY   TAKEN DELAYED  BURIED    DONE WAITING   PUT/S  \
                 TAKE/S   ACK/S   WAKE",
                "mail (paused) fifottl         15       0       0       0      15       2      \
                 20      10      10      -",
                "sms           fifottl         16       0       0       0      15       2      \
                 20      10      10     1m",
                "q quit  / filter  ←→ order by  r reverse  ↑↓ scroll",
            ]
        );
    }

    #[test]
    fn eighty_columns_are_enough_for_the_counts_and_the_rates() {
        let shown = screen(&mut view(&["mail"]), 80, 7);
        let titles =
            "TUBE▲    READY   TAKEN DELAYED  BURIED    DONE WAITING   PUT/S  TAKE/S   ACK/S";
        assert_eq!(shown[4], titles);
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
        let shown = screen(&mut view, 60, 7);
        assert!(shown[5].starts_with("a name tha… (paused)   "), "{shown:?}");
    }

    #[test]
    fn names_from_a_strange_server_are_escaped() {
        let shown = screen(&mut view(&["a\u{1b}[31mb\nc"]), 120, 7);
        assert!(shown[5].starts_with(r"a\u{1b}[31mb\u{a}c "), "{shown:?}");
    }

    #[test]
    fn a_server_that_is_away_is_told_and_the_last_numbers_stay() {
        let mut view = view(&["mail"]);
        let why = "connection refused".to_owned();
        view.see(Seen::Away(HttpError::Unreachable { url: "http://x".into(), why }));
        let shown = screen(&mut view, 100, 7);
        let told = "AWAY, trying again every 1s: connection refused";
        assert_eq!(shown[1], told);
        assert!(shown[5].starts_with("mail"));
        let mut first = View::new("http://x".into(), Duration::from_secs(1), Choice::default());
        assert_eq!(screen(&mut first, 100, 7)[1], "asking …");
        first.overdue = Some(Duration::from_secs(3));
        assert_eq!(screen(&mut first, 100, 7)[1], "no answer for 3 s");
    }

    #[test]
    fn more_tubes_than_lines_are_scrolled() {
        let names: Vec<String> = (0..30).map(|nth| format!("tube-{nth:02}")).collect();
        let mut view = view(&names.iter().map(String::as_str).collect::<Vec<_>>());
        screen(&mut view, 100, 10);
        view.press(KeyCode::PageDown.into());
        let shown = screen(&mut view, 100, 10);
        assert!(shown[5].starts_with("tube-04"), "{shown:?}");
        assert!(shown[9].ends_with("from 5 of 30"), "{shown:?}");
    }

    #[test]
    fn the_filter_is_seen_while_it_is_written_and_after() {
        let mut view = view(&["mail", "sms"]);
        press(&mut view, "/sm");
        assert!(screen(&mut view, 100, 8)[7].starts_with("filter: sm_  Enter"));
        press(&mut view, "x\n");
        let shown = screen(&mut view, 100, 8);
        assert_eq!(shown[5], "no tube has this in its name");
        assert!(shown[7].starts_with("filter: smx  q quit"));
    }

    #[test]
    fn the_order_is_marked() {
        let mut view = view(&["mail", "sms"]);
        press(&mut view, ">>");
        let shown = screen(&mut view, 120, 8);
        assert!(shown[4].contains(" ▼READY ") && shown[5].starts_with("sms"), "{shown:?}");
        press(&mut view, "r");
        let shown = screen(&mut view, 120, 8);
        assert!(shown[4].contains(" ▲READY ") && shown[5].starts_with("mail"), "{shown:?}");
    }
}
