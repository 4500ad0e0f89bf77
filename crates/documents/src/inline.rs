//! Turns one line of Markdown into HTML. Everything that is not a known mark is escaped text.

/// Whether a relative link is kept; of others only the text is.
pub type IsLinked<'a> = &'a dyn Fn(&str) -> bool;

/// A text in which nothing is HTML.
pub fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    text.replace('"', "&quot;")
}

/// The HTML of a text: code, links, drawings, other images as their text, and emphasis.
pub fn html_of(text: &str, is_linked: IsLinked<'_>) -> String {
    let mut html = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['\\', '`', '[', '!', '<', '*']) {
        html.push_str(&escaped(&rest[..at]));
        rest = &rest[at..];
        let parsed = parsed(rest, is_linked);
        match parsed {
            Some((part, after)) => {
                html.push_str(&part);
                rest = after;
            }
            None => {
                let end = rest.chars().next().map_or(0, char::len_utf8);
                html.push_str(&escaped(&rest[..end]));
                rest = &rest[end..];
            }
        }
    }
    html + &escaped(rest)
}

/// The HTML of the mark at the beginning of a text, and what follows it.
fn parsed<'a>(text: &'a str, is_linked: IsLinked<'_>) -> Option<(String, &'a str)> {
    match text.as_bytes()[0] {
        b'\\' => {
            let next = text[1..].chars().next().filter(char::is_ascii_punctuation)?;
            Some((escaped(&next.to_string()), &text[2..]))
        }
        b'`' => code(text),
        b'!' => {
            let (alt, target, after) = link_parts(text.strip_prefix('!')?)?;
            let (alt, source) = (escaped(alt), escaped(target));
            match target.ends_with(".svg") && !target.contains(':') && is_linked(target) {
                true => Some((format!("<img src=\"{source}\" alt=\"{alt}\">"), after)),
                false => Some((format!("<em>{alt}</em>"), after)),
            }
        }
        b'[' => {
            let (label, target, after) = link_parts(text)?;
            let inner = html_of(label, is_linked);
            match is_web(target) || !target.contains(':') && is_linked(target) {
                true => Some((format!("<a href=\"{}\">{inner}</a>", escaped(target)), after)),
                false => Some((inner, after)),
            }
        }
        b'<' => {
            let (target, after) = text[1..].split_once('>')?;
            let target = Some(target).filter(|target| is_web(target) && !target.contains(' '))?;
            let target = escaped(target);
            Some((format!("<a href=\"{target}\">{target}</a>"), after))
        }
        _ => emphasis(text, is_linked),
    }
}

fn is_web(target: &str) -> bool {
    target.starts_with("https://") || target.starts_with("http://")
}

/// Code between equally many backquotes.
fn code(text: &str) -> Option<(String, &str)> {
    let ticks = text.len() - text.trim_start_matches('`').len();
    let (mark, inner) = text.split_at(ticks);
    let at = inner.find(mark)?;
    let shown = &inner[..at];
    // A space beside a backquote separates the two.
    let is_padded = shown.starts_with(' ') && shown.ends_with(' ') && shown.contains('`');
    let shown = if is_padded { &shown[1..shown.len() - 1] } else { shown };
    Some((format!("<code>{}</code>", escaped(shown)), &inner[at + ticks..]))
}

/// The text and the target of a link, and what follows it.
fn link_parts(text: &str) -> Option<(&str, &str, &str)> {
    let inner = text.strip_prefix('[')?;
    let mut depth = 0;
    let end = inner.char_indices().find_map(|(at, c)| {
        match c {
            '[' => depth += 1,
            ']' if depth == 0 => return Some(at),
            ']' => depth -= 1,
            _ => {}
        }
        None
    })?;
    let (target, after) = inner[end + 1..].strip_prefix('(')?.split_once(')')?;
    let target = target.split_whitespace().next().unwrap_or_default();
    Some((&inner[..end], target, after))
}

/// Strong text between two asterisks on each side, or emphasis between one.
fn emphasis<'a>(text: &'a str, is_linked: IsLinked<'_>) -> Option<(String, &'a str)> {
    let (mark, tag) = if text.starts_with("**") { ("**", "strong") } else { ("*", "em") };
    let inner = &text[mark.len()..];
    if inner.starts_with(char::is_whitespace) {
        return None;
    }
    let at = closing(inner, mark)?;
    let shown = html_of(&inner[..at], is_linked);
    Some((format!("<{tag}>{shown}</{tag}>"), &inner[at + mark.len()..]))
}

/// Where a mark is outside of code and behind a word.
fn closing(text: &str, mark: &str) -> Option<usize> {
    let mut in_code = false;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        in_code ^= c == '`';
        let is_end = !in_code && at > 0 && !before.is_whitespace() && before != '\\';
        if is_end && text[at..].starts_with(mark) {
            return Some(at);
        }
        before = c;
    }
    None
}
