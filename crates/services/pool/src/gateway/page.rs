//! Serves the files of the web page, which are compiled in.

use axum::Router;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::IntoResponse;
use axum::routing::get;

use super::shared::Gateway;

/// Path, media type and content of each file.
const FILES: [(&str, &str, &str); 4] = [
    ("/pool", "text/html; charset=utf-8", include_str!("page/index.html")),
    ("/pool/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
    ("/pool/style.css", "text/css; charset=utf-8", include_str!("page/style.css")),
    ("/pool/page.js", "text/javascript; charset=utf-8", include_str!("page/page.js")),
];

/// Allows nothing from other sites and nothing inline; pictures and PDF files are shown from memory. An SVG shown as
/// a picture runs no script, and only what the page itself recognises as PDF becomes an object.
const POLICY: &str = "default-src 'self'; img-src 'self' blob:; object-src blob:; frame-src blob:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Whether the path is a file of the page. These files contain no data.
pub fn has(path: &str) -> bool {
    FILES.iter().any(|file| file.0 == path)
}

pub(super) fn add(router: Router<Gateway>) -> Router<Gateway> {
    FILES.into_iter().fold(router, |router, (path, kind, text)| {
        let headers = [(CONTENT_TYPE, kind), (CONTENT_SECURITY_POLICY, POLICY)];
        router.route(path, get(move || async move { (headers, text).into_response() }))
    })
}
