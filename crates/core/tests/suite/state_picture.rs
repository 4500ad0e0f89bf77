//! Generates and checks the picture of the states of a task, from the table of transitions.

use std::fmt::Write as _;

use taskyard_core::state::{Event, TRANSITIONS};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/concepts.md");
const BEGIN: &str = "<!-- states of crates/core/src/state.rs: begin -->\n";
const END: &str = "<!-- states: end -->\n";

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

/// The picture: one arrow for each pair of states, with all events that lead from one to the other.
fn picture() -> String {
    let mut arrows: Vec<(&str, &str, Vec<String>)> = Vec::new();
    for (from, event, to) in TRANSITIONS {
        let (from, to) = (from.map_or("[*]", |from| from.name()), to.name());
        match arrows.iter_mut().find(|arrow| (arrow.0, arrow.1) == (from, to)) {
            Some(arrow) => arrow.2.push(words(*event)),
            None => arrows.push((from, to, vec![words(*event)])),
        }
    }
    let mut text = "```mermaid\nstateDiagram-v2\n".to_owned();
    for (from, to, events) in arrows {
        writeln!(text, "    {from} --> {to}: {}", events.join(", ")).expect("it is memory");
    }
    text + "```\n"
}

#[test]
fn the_picture_of_the_states_is_current() {
    let page = std::fs::read_to_string(PAGE).expect("the page can be read");
    let (before, rest) = page.split_once(BEGIN).expect("the page has a picture");
    let (committed, after) = rest.split_once(END).expect("the picture ends");
    let made = picture();
    if std::env::var_os("TASKYARD_WRITE_DOCS").is_some() {
        let page = [before, BEGIN, &made, END, after].concat();
        std::fs::write(PAGE, page).expect("the page can be written");
        return;
    }
    assert_eq!(committed, made, "docs/concepts.md is outdated: run `cargo xtask docs`");
}
