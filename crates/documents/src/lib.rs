//! The documents of the project as pages of its server, at `/docs`.
//!
//! The texts are compressed in the program and unpacked by the first request. A browser gets a page, every other client the text
//! as it was written. There are no scripts: a page is made by its first request and kept. The crate knows nothing of tasks.
//!
//! Start reading at [`router`], then `markdown.rs`, which makes a page of a text.

mod inline;
mod markdown;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use axum::Router;
use axum::extract::Path;
use axum::http::header::{ACCEPT, CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION, VARY};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use taskyard_packed::Texts;

/// All documents, packed by the build script.
const PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/documents"));
/// The list of all documents.
const INDEX: &str = "README.md";
const STYLE: &str = include_str!("style.css");
const PAGE: &str = include_str!("page.html");

/// As for the dashboard: no external and no inline content.
const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'self'; \
                      frame-ancestors 'none'; object-src 'none'";

/// A drawing is loaded by a page, and may be opened by itself: it has rules of style and nothing else.
const DRAWING_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// A document, and its page once a browser has asked for it.
struct Document {
    text: String,
    page: OnceLock<String>,
}

/// The pages. They show no data.
pub fn router() -> Router {
    // Relative, so that the pages also work below a path of a proxy.
    let index = async || (StatusCode::TEMPORARY_REDIRECT, [(LOCATION, "docs/")]);
    let style = async || ([(CONTENT_TYPE, "text/css; charset=utf-8")], STYLE);
    let page = async |Path(path): Path<String>, headers: HeaderMap| answer(&path, &headers);
    Router::new()
        .route("/docs", get(index))
        .route("/docs/", get(async |headers: HeaderMap| answer(INDEX, &headers)))
        .route("/docs/style.css", get(style))
        .route("/docs/{*path}", get(page))
}

/// Whether a path belongs to the documents.
pub fn is_page(path: &str) -> bool {
    path == "/docs" || path.starts_with("/docs/")
}

/// A document: as a page for a browser, as text for every other client.
fn answer(path: &str, headers: &HeaderMap) -> Response {
    let Some(document) = documents().get(path) else {
        let message = "no such document; /docs/ lists them\n";
        return (StatusCode::NOT_FOUND, message).into_response();
    };
    if is_drawing(path) {
        let headers = [(CONTENT_TYPE, "image/svg+xml"), (CONTENT_SECURITY_POLICY, DRAWING_POLICY)];
        return (headers, document.text.as_str()).into_response();
    }
    if !accepts_html(headers) {
        let kind = "text/markdown; charset=utf-8";
        return ([(CONTENT_TYPE, kind), (VARY, "accept")], document.text.as_str()).into_response();
    }
    let kind = "text/html; charset=utf-8";
    let headers = [(CONTENT_TYPE, kind), (VARY, "accept"), (CONTENT_SECURITY_POLICY, POLICY)];
    let html = document.page.get_or_init(|| page(path, &document.text));
    (headers, html.as_str()).into_response()
}

fn is_drawing(path: &str) -> bool {
    path.ends_with(".svg")
}

/// Whether a client asks for pages by name, as browsers do. `*/*` is no such request.
fn accepts_html(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let is_html = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("text/html"));
        is_html && !parts.any(is_refusal)
    })
}

/// Whether a parameter is a quality of zero, such as `q=0.0`.
fn is_refusal(parameter: &str) -> bool {
    parameter.split_once('=').is_some_and(|(name, value)| {
        name.eq_ignore_ascii_case("q") && value.trim_matches(['0', '.']).is_empty()
    })
}

/// The page of a document.
fn page(path: &str, text: &str) -> String {
    let depth = path.matches('/').count();
    let (title, html) = markdown::render(text, &|link| is_linked(path, link));
    let page = PAGE.replace("{documents}", &format!("./{}", "../".repeat(depth)));
    let page = page.replace("{root}", &"../".repeat(depth + 1));
    // Last, because a document may contain such a word.
    page.replacen("{title}", &inline::escaped(&title), 1).replacen("{content}", &html, 1)
}

/// Whether a link leads to a document: the files of the repository are not here.
fn is_linked(from: &str, link: &str) -> bool {
    let file = link.split('#').next().unwrap_or_default();
    file.is_empty() || resolve(from, file).is_some_and(|path| documents().contains_key(&path))
}

/// The path that a link in the document `from` means. A link from the root leads to no document.
fn resolve(from: &str, link: &str) -> Option<String> {
    if link.starts_with('/') {
        return None;
    }
    let mut parts: Vec<&str> = from.split('/').collect();
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

/// All documents by their paths.
fn documents() -> &'static BTreeMap<String, Document> {
    static DOCUMENTS: OnceLock<BTreeMap<String, Document>> = OnceLock::new();
    DOCUMENTS.get_or_init(|| {
        let texts = Texts::unpack(PACKED).into_texts();
        texts.map(|(path, text)| (path, Document { text, page: OnceLock::new() })).collect()
    })
}

#[cfg(test)]
mod tests;
