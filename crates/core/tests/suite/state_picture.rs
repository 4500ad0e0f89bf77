//! Draws the picture of the states of a task from the table of transitions, and checks that the one of the documents is current.

use std::fmt::Write as _;

use taskyard_core::state::{Event, State, StateSet, TRANSITIONS};

/// The picture in the documents.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/states.svg");

/// A point of the picture.
type Point = (i32, i32);

/// The middle of the box of a state.
fn place(state: State) -> Point {
    match state {
        State::Delayed => (160, 190),
        State::Ready => (480, 190),
        State::Taken => (800, 190),
        State::Buried => (480, 360),
        State::Done => (480, 510),
    }
}

/// How an arrow is drawn.
struct Arrow {
    /// From the beginning of a task if there is none.
    from: Option<State>,
    to: State,
    path: &'static str,
    /// Where its text is, and which end of the text is there.
    label: (Point, &'static str),
}

const fn arrow(
    from: Option<State>,
    to: State,
    path: &'static str,
    label: (Point, &'static str),
) -> Arrow {
    Arrow { from, to, path, label }
}

/// All arrows. What is beside them comes from the table.
fn arrows() -> Vec<Arrow> {
    use State::{Buried, Delayed, Done, Ready, Taken};
    vec![
        arrow(None, Ready, "M320 96C360 96 440 100 456 160", ((410, 92), "middle")),
        arrow(None, Delayed, "M320 96C280 96 200 100 184 160", ((256, 122), "start")),
        arrow(Some(Ready), Ready, "M500 165C500 118 556 118 536 163", ((552, 132), "start")),
        arrow(Some(Delayed), Ready, "M222 180H414", ((320, 172), "middle")),
        arrow(Some(Ready), Delayed, "M418 201H226", ((320, 220), "middle")),
        arrow(Some(Delayed), Delayed, "M130 165C130 118 74 118 106 163", ((94, 118), "middle")),
        arrow(Some(Ready), Taken, "M542 180H734", ((640, 172), "middle")),
        arrow(Some(Taken), Ready, "M738 201H546", ((640, 220), "middle")),
        arrow(Some(Taken), Delayed, "M800 165C790 10 170 10 160 161", ((480, 40), "middle")),
        arrow(Some(Taken), Taken, "M830 165C830 118 886 118 856 163", ((872, 132), "start")),
        arrow(Some(Taken), Buried, "M776 215C740 300 660 352 546 356", ((690, 290), "end")),
        arrow(Some(Ready), Buried, "M466 215V331", ((458, 286), "end")),
        arrow(Some(Delayed), Buried, "M184 215C220 300 300 352 414 356", ((236, 270), "start")),
        arrow(Some(Buried), Ready, "M494 335V219", ((502, 286), "start")),
        arrow(Some(Ready), Done, "M440 215C360 290 350 420 446 484", ((372, 410), "end")),
        arrow(Some(Delayed), Done, "M150 215C150 400 300 506 414 509", ((200, 430), "end")),
        arrow(Some(Buried), Done, "M480 385V481", ((488, 436), "start")),
        arrow(Some(Taken), Done, "M812 215C812 400 660 506 546 509", ((756, 430), "start")),
    ]
}

/// The picture without its contents. It has a background of its own: a page does not tell a picture which colours it has.
const HEAD: &str = r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 550" width="960" height="550" role="img" aria-labelledby="title">
<title id="title">The states of a task, and the events that lead from one to another</title>
<style>
.page { fill: #fff } .box { fill: #eef2f7; stroke: #5b6675 } .line { fill: none; stroke: #5b6675; stroke-width: 1.5 } .head { fill: #5b6675 }
text { font: 14px system-ui, sans-serif; fill: #14181f } .name { font-size: 15px; font-weight: 600; text-anchor: middle }
@media (prefers-color-scheme: dark) {
.page { fill: #14181f } .box { fill: #242b36; stroke: #9aa7b8 } .line { stroke: #9aa7b8 } .head { fill: #9aa7b8 } text { fill: #e6ebf2 }
}
</style>
<marker id="head" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="7" markerHeight="7" orient="auto"><path class="head" d="M0 0 10 5 0 10z"/></marker>
<rect class="page" width="960" height="550" rx="8"/>
<circle class="head" cx="320" cy="96" r="7"/>
"##;

/// The name of an event in words: `PutDelayed` is "put delayed".
fn words(event: Event) -> String {
    let mut text = String::new();
    for letter in format!("{event:?}").chars() {
        if letter.is_uppercase() && !text.is_empty() {
            text.push(' ');
        }
        text.extend(letter.to_lowercase());
    }
    text
}

/// All events that lead from one state to another.
fn events(from: Option<State>, to: State) -> String {
    let found = TRANSITIONS.iter().filter(|row| (row.0, row.2) == (from, to));
    found.map(|row| words(row.1)).collect::<Vec<_>>().join(", ")
}

fn picture() -> String {
    let mut svg = HEAD.to_owned();
    for Arrow { path, .. } in arrows() {
        writeln!(svg, r##"<path class="line" marker-end="url(#head)" d="{path}"/>"##).unwrap();
    }
    for state in StateSet::STATES {
        let ((x, y), name) = (place(state), state.name());
        let (left, top) = (x - 62, y - 25);
        write!(svg, r#"<rect class="box" x="{left}" y="{top}" width="124" height="50" rx="10"/>"#)
            .unwrap();
        writeln!(svg, r#"<text class="name" x="{x}" y="{}">{name}</text>"#, y + 5).unwrap();
    }
    for Arrow { from, to, label: ((x, y), end), .. } in arrows() {
        let events = events(from, to);
        writeln!(svg, r#"<text x="{x}" y="{y}" text-anchor="{end}">{events}</text>"#).unwrap();
    }
    svg + "</svg>\n"
}

/// A transition without an arrow would be missing in the picture, and an arrow without one would have no text.
#[test]
fn the_picture_has_an_arrow_for_each_transition_and_no_other() {
    let arrows = arrows();
    let drawn = |from, to| arrows.iter().filter(move |arrow| (arrow.from, arrow.to) == (from, to));
    for (from, event, to) in TRANSITIONS {
        assert_eq!(drawn(*from, *to).count(), 1, "{from:?} {event:?} {to:?}");
    }
    for arrow in &arrows {
        assert_ne!(events(arrow.from, arrow.to), "", "{:?} {:?}", arrow.from, arrow.to);
    }
}

#[test]
fn the_picture_of_the_states_is_current() {
    let made = picture();
    if std::env::var_os("TASKYARD_WRITE_DOCS").is_some() {
        std::fs::write(FILE, made).expect("the picture can be written");
        return;
    }
    let committed = std::fs::read_to_string(FILE).expect("the documents have the picture");
    assert!(committed == made, "docs/states.svg is outdated: run `cargo xtask docs`");
}
