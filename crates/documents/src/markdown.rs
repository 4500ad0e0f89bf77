//! Turns a document into HTML: the part of Markdown that the documents use. Anything else is a paragraph.

use std::collections::BTreeSet;
use std::iter::Peekable;
use std::str::Lines;

use crate::inline::{IsLinked, escaped, html_of};

/// The title of a document, and its HTML.
pub fn render(text: &str, is_linked: IsLinked<'_>) -> (String, String) {
    let mut page = DocumentWriter {
        lines: text.lines().peekable(),
        is_linked,
        html: String::new(),
        title: String::new(),
        paragraph: String::new(),
        lists: Vec::new(),
        ids: BTreeSet::new(),
    };
    while let Some(line) = page.lines.next() {
        page.block(line);
    }
    page.close_lists(0);
    (page.title, page.html)
}

/// An open list.
struct OpenList {
    /// How many columns its marks are indented.
    indent: usize,
    tag: &'static str,
}

struct DocumentWriter<'a> {
    lines: Peekable<Lines<'a>>,
    is_linked: IsLinked<'a>,
    html: String,
    title: String,
    /// The lines of the open paragraph or item.
    paragraph: String,
    lists: Vec<OpenList>,
    ids: BTreeSet<String>,
}

impl DocumentWriter<'_> {
    /// Writes the block that begins with this line, or adds the line to the open one.
    fn block(&mut self, line: &str) {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        if text.is_empty() {
            self.end_paragraph();
        } else if text.starts_with("```") {
            self.code(indent);
        } else if text.starts_with("<!--") {
            self.comment(text);
        } else if let Some((level, title)) = heading(line) {
            self.heading(level, title);
        } else if text.starts_with('|') && self.is_table() {
            self.table(text);
        } else if let Some((tag, item)) = item(text) {
            self.item(indent, tag, item);
        } else {
            if self.paragraph.is_empty() && indent == 0 {
                self.close_lists(0);
            }
            let separator = if self.paragraph.is_empty() { "" } else { "\n" };
            self.paragraph.push_str(separator);
            self.paragraph.push_str(text);
        }
    }

    fn end_paragraph(&mut self) {
        if self.paragraph.is_empty() {
            return;
        }
        let html = html_of(&std::mem::take(&mut self.paragraph), self.is_linked);
        match self.lists.is_empty() {
            true => self.html.push_str(&format!("<p>{html}</p>\n")),
            false => self.html.push_str(&html),
        }
    }

    fn code(&mut self, indent: usize) {
        self.end_paragraph();
        if indent == 0 {
            self.close_lists(0);
        }
        self.html.push_str("<pre><code>");
        for line in self.lines.by_ref() {
            if line.trim_start().starts_with("```") {
                break;
            }
            let blank = line.len() - line.trim_start().len();
            self.html.push_str(&escaped(&line[blank.min(indent)..]));
            self.html.push('\n');
        }
        self.html.push_str("</code></pre>\n");
    }

    /// Leaves a comment out.
    fn comment(&mut self, first: &str) {
        self.end_paragraph();
        if !first.contains("-->") {
            self.lines.by_ref().find(|line| line.contains("-->"));
        }
    }

    fn heading(&mut self, level: usize, title: &str) {
        self.close_lists(0);
        let id = self.free_id(title);
        if self.title.is_empty() {
            self.title = title.replace('`', "");
        }
        let html = html_of(title, self.is_linked);
        let id = escaped(&id);
        self.html
            .push_str(&format!("<h{level} id=\"{id}\"><a href=\"#{id}\">{html}</a></h{level}>\n"));
    }

    /// The name of a heading, with a number if the page has it already.
    fn free_id(&mut self, title: &str) -> String {
        let kept = |c: &char| c.is_alphanumeric() || "-_ ".contains(*c);
        let name: String = title.trim().to_lowercase().chars().filter(kept).collect();
        let name = name.replace(' ', "-");
        let mut id = name.clone();
        let mut number = 0;
        while !self.ids.insert(id.clone()) {
            number += 1;
            id = format!("{name}-{number}");
        }
        id
    }

    fn is_table(&mut self) -> bool {
        let is_rule = |line: &&str| {
            line.trim_start().starts_with("|-") && line.chars().all(|c| "|-: ".contains(c))
        };
        self.paragraph.is_empty() && self.lines.peek().is_some_and(is_rule)
    }

    fn table(&mut self, head: &str) {
        self.close_lists(0);
        self.lines.next();
        self.html.push_str("<div class=\"scroll\"><table>\n");
        self.row(head, "th");
        while let Some(line) = self.lines.next_if(|line| line.starts_with('|')) {
            self.row(line, "td");
        }
        self.html.push_str("</table></div>\n");
    }

    fn row(&mut self, line: &str, tag: &str) {
        self.html.push_str("<tr>");
        for cell in cells(line) {
            let html = html_of(&cell, self.is_linked);
            self.html.push_str(&format!("<{tag}>{html}</{tag}>"));
        }
        self.html.push_str("</tr>\n");
    }

    fn item(&mut self, indent: usize, tag: &'static str, text: &str) {
        self.end_paragraph();
        self.close_lists(indent + 1);
        if self.lists.last().is_some_and(|list| list.indent == indent) {
            self.html.push_str("</li>\n<li>");
        } else {
            self.lists.push(OpenList { indent, tag });
            self.html.push_str(&format!("<{tag}>\n<li>"));
        }
        let text = text.strip_prefix("[ ] ").map_or(text.to_owned(), |rest| format!("☐ {rest}"));
        self.paragraph.push_str(&text);
    }

    /// Closes the lists whose marks are indented by at least this.
    fn close_lists(&mut self, indent: usize) {
        self.end_paragraph();
        while let Some(list) = self.lists.pop_if(|list| list.indent >= indent) {
            self.html.push_str(&format!("</li>\n</{}>\n", list.tag));
        }
    }
}

/// The level and the text of a heading.
fn heading(line: &str) -> Option<(usize, &str)> {
    let text = line.trim_start_matches('#');
    let level = line.len() - text.len();
    let title = text.strip_prefix(' ').filter(|_| (1..=6).contains(&level))?;
    Some((level, title.trim()))
}

/// The kind and the text of an item of a list.
fn item(text: &str) -> Option<(&'static str, &str)> {
    if let Some(rest) = text.strip_prefix("- ").or_else(|| text.strip_prefix("* ")) {
        return Some(("ul", rest.trim_start()));
    }
    let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let rest = Some(rest).filter(|rest| rest.len() < text.len())?.strip_prefix(". ")?;
    Some(("ol", rest.trim_start()))
}

/// The cells of a row. A bar with a backslash belongs to a cell.
fn cells(line: &str) -> Vec<String> {
    let row = line.trim().trim_start_matches('|');
    let row = row.strip_suffix('|').unwrap_or(row).replace("\\|", "\u{0}");
    row.split('|').map(|cell| cell.trim().replace('\u{0}', "|")).collect()
}
