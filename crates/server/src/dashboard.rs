//! Serves the dashboard: static files compiled into the program.

use axum::Router;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::IntoResponse;
use axum::routing::get;

use crate::app::SharedApp;

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

/// Path, content type and content of each file.
const FILES: [(&str, &str, &str); 10] = [
    ("/", HTML, include_str!("dashboard/index.html")),
    ("/style.css", STYLE, include_str!("dashboard/style.css")),
    ("/icon.svg", IMAGE, include_str!("dashboard/icon.svg")),
    ("/app.js", SCRIPT, include_str!("dashboard/app.js")),
    ("/api.js", SCRIPT, include_str!("dashboard/api.js")),
    ("/details.js", SCRIPT, include_str!("dashboard/details.js")),
    ("/rates.js", SCRIPT, include_str!("dashboard/rates.js")),
    ("/services.js", SCRIPT, include_str!("dashboard/services.js")),
    ("/table.js", SCRIPT, include_str!("dashboard/table.js")),
    ("/format.js", SCRIPT, include_str!("dashboard/format.js")),
];

/// No external and no inline content: a payload that got into the page could not run.
const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'self'; \
                      frame-ancestors 'none'; object-src 'none'";

/// Whether this path is a file of the dashboard. The files need no token: they contain no data.
pub(crate) fn has(path: &str) -> bool {
    FILES.iter().any(|file| file.0 == path)
}

/// The files of the dashboard.
pub(crate) fn router() -> Router<SharedApp> {
    FILES.into_iter().fold(Router::new(), |router, (path, kind, text)| {
        let headers = [(CONTENT_TYPE, kind), (CONTENT_SECURITY_POLICY, POLICY)];
        router.route(path, get(move || async move { (headers, text).into_response() }))
    })
}
