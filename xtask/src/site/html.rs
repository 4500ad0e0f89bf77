//! Checks that the links of rendered pages lead to existing files and places.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The pages of a site by their paths.
pub type Pages = BTreeMap<String, String>;

/// Reads all pages below a folder.
pub fn read(site: &Path) -> Result<Pages, String> {
    let mut pages = Pages::new();
    walk(site, "", &mut pages).map_err(|error| format!("{}: {error}", site.display()))?;
    Ok(pages)
}

fn walk(site: &Path, under: &str, pages: &mut Pages) -> std::io::Result<()> {
    for entry in fs::read_dir(site.join(under))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if under.is_empty() { name } else { format!("{under}/{name}") };
        if entry.file_type()?.is_dir() {
            walk(site, &path, pages)?;
        } else if path.ends_with(".html") {
            pages.insert(path, fs::read_to_string(entry.path())?);
        }
    }
    Ok(())
}

/// Every link that leads nowhere, with its page. `is_file` tells whether the site has a file.
pub fn broken_links(pages: &Pages, is_file: &dyn Fn(&str) -> bool) -> Vec<String> {
    let ids: BTreeMap<&str, BTreeSet<String>> =
        pages.iter().map(|(path, text)| (path.as_str(), ids(text))).collect();
    let mut problems = BTreeSet::new();
    for (page, text) in pages {
        for link in attributes(text, &["href", "src"]) {
            let (file, place) = link.split_once('#').unwrap_or((&link, ""));
            if is_external(file) {
                continue;
            }
            let path = match file.split('?').next().unwrap_or_default() {
                "" => Some(page.clone()),
                file => resolve(page, &decoded(file)),
            };
            let problem = match path.filter(|path| is_file(path) || pages.contains_key(path)) {
                None => format!("{page}: `{link}` leads nowhere"),
                Some(path) => match ids.get(path.as_str()) {
                    Some(ids) if !place.is_empty() && !ids.contains(&decoded(place)) => {
                        format!("{page}: `{path}` has no place `#{place}`")
                    }
                    _ => continue,
                },
            };
            problems.insert(problem);
        }
    }
    problems.into_iter().collect()
}

/// Whether the link has a scheme or names another host.
fn is_external(link: &str) -> bool {
    let scheme = link.split_once(':').map_or("", |(scheme, _)| scheme);
    let is_scheme = !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric());
    is_scheme || link.starts_with("//")
}

fn resolve(page: &str, link: &str) -> Option<String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

fn ids(text: &str) -> BTreeSet<String> {
    attributes(text, &["id", "name"]).into_iter().collect()
}

/// The values of attributes with these names in all tags.
fn attributes(text: &str, names: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find('<') {
        rest = &rest[start..];
        if let Some(comment) = rest.strip_prefix("<!--") {
            rest = comment.split_once("-->").map_or("", |(_, after)| after);
            continue;
        }
        let end = tag_end(rest);
        let tag = &rest[..end];
        for name in names {
            let mark = format!(" {name}=");
            let values = tag.match_indices(&mark).map(|(at, _)| value(&tag[at + mark.len()..]));
            found.extend(values.map(unescaped));
        }
        rest = &rest[end..];
        for code in ["<script", "<style"] {
            if tag.starts_with(code) {
                let close = rest.find(&code.replace('<', "</")).unwrap_or(rest.len());
                rest = &rest[close..];
            }
        }
    }
    found
}

/// Where a tag ends: `>` may be in a value with quotes.
fn tag_end(text: &str) -> usize {
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (None, '>') => return at,
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            _ => {}
        }
    }
    text.len()
}

/// The value at the beginning of this text, with quotes or without.
fn value(text: &str) -> &str {
    match text.chars().next() {
        Some(quote @ ('"' | '\'')) => text[1..].split(quote).next().unwrap_or_default(),
        _ => text.split(|c: char| c.is_whitespace() || c == '>').next().unwrap_or_default(),
    }
}

fn unescaped(value: &str) -> String {
    value.replace("&#39;", "'").replace("&quot;", "\"").replace("&amp;", "&")
}

/// Replaces `%20` and the like.
fn decoded(link: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = link.as_bytes();
    while let [first, after @ ..] = rest {
        let hex =
            after.get(..2).filter(|_| *first == b'%').and_then(|hex| str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(page: &str) -> Vec<String> {
        let other = "<h1 id=\"top\">A</h1><h2 id='über-uns'></h2>";
        let pages = [("docs/a.html", page), ("b.html", other)];
        let pages = pages.map(|(path, text)| (path.to_string(), text.to_string())).into();
        broken_links(&pages, &|path| path == "css/a.css")
    }

    #[test]
    fn links_that_lead_somewhere() {
        let page = "<link href=\"../css/a.css\"><a id=x class=c href='#x'>x</a><a href=\"../b.html#top\">\
            <a href=\"../b.html#%C3%BCber-uns\"><a href=\"https://a.example/none\"><img src=\"data:,\">\
            <!-- <a href=\"none\"> --><script>'<a href=\"none\">'</script><a title=\"a > b\" href=\"../b.html?q=1\">\
            &lt;a href=\"none\"&gt;";
        assert_eq!(broken(page), [] as [String; 0]);
    }

    #[test]
    fn links_that_lead_nowhere() {
        for (link, problem) in [
            ("none.html", "docs/a.html: `none.html` leads nowhere"),
            ("../../b.html", "docs/a.html: `../../b.html` leads nowhere"),
            ("../b.html#none", "docs/a.html: `b.html` has no place `#none`"),
            ("#none", "docs/a.html: `docs/a.html` has no place `#none`"),
            ("../css/b.css", "docs/a.html: `../css/b.css` leads nowhere"),
        ] {
            assert_eq!(broken(&format!("<a href=\"{link}\">")), [problem]);
        }
    }
}
