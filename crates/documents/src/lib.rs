//! The documents of the project as pages of its server, at `/docs`.
//!
//! The texts are compressed in the program and unpacked by the first request. A browser gets a page, every other client the text
//! as it was written. There are no scripts: a page is made on each request. The crate knows nothing of tasks.
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

/// All documents, compressed by the build script.
const PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/documents"));
/// The list of all documents.
const INDEX: &str = "README.md";
const STYLE: &str = include_str!("style.css");
const PAGE: &str = include_str!("page.html");

/// As for the dashboard: no external and no inline content.
const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'self'; \
                      frame-ancestors 'none'; object-src 'none'";

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
    let Some(text) = document(path) else {
        let message = "no such document; /docs/ lists them\n";
        return (StatusCode::NOT_FOUND, message).into_response();
    };
    let accepted = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !accepted.contains("text/html") {
        let kind = "text/markdown; charset=utf-8";
        return ([(CONTENT_TYPE, kind), (VARY, "accept")], text).into_response();
    }
    let kind = "text/html; charset=utf-8";
    let headers = [(CONTENT_TYPE, kind), (VARY, "accept"), (CONTENT_SECURITY_POLICY, POLICY)];
    (headers, page(path, text)).into_response()
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
    file.is_empty() || resolve(from, file).is_some_and(|path| document(&path).is_some())
}

/// The path that a link in the document `from` means.
fn resolve(from: &str, link: &str) -> Option<String> {
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

/// The text of a document.
fn document(path: &str) -> Option<&'static str> {
    documents().get(path).map(String::as_str)
}

/// All documents by their paths.
fn documents() -> &'static BTreeMap<String, String> {
    static DOCUMENTS: OnceLock<BTreeMap<String, String>> = OnceLock::new();
    DOCUMENTS.get_or_init(|| unpacked(PACKED).unwrap_or_default())
}

/// Reads what the build script has packed.
fn unpacked(packed: &[u8]) -> Option<BTreeMap<String, String>> {
    let bytes = miniz_oxide::inflate::decompress_to_vec(packed).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let (mut documents, mut rest) = (BTreeMap::new(), text.as_str());
    while let Some((head, after)) = rest.split_once('\n') {
        let (path, length) = head.rsplit_once(' ')?;
        let (document, next) = after.split_at_checked(length.parse().ok()?)?;
        documents.insert(path.to_owned(), document.to_owned());
        rest = next;
    }
    Some(documents)
}

#[cfg(test)]
mod tests;
