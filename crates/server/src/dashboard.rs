//! Serves the dashboard: static files packed into the program, and its page at the path of every view.

use std::sync::LazyLock;

use axum::Router;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::IntoResponse;
use axum::routing::get;
use taskyard_packed::Texts;

use crate::app::SharedApp;

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

/// The files of the folder `dashboard`, packed by the build script.
static TEXTS: LazyLock<Texts> =
    LazyLock::new(|| Texts::unpack(include_bytes!(concat!(env!("OUT_DIR"), "/dashboard"))));
const PAGE: &str = "index.html";
const ASSETS: &str = "/assets/";

/// The paths of the views. Each responds with the same page, which shows the view of its path. `/pool` is not among them: it
/// belongs to the pool.
const VIEWS: [&str; 11] = [
    "/",
    "/tubes/{tube}",
    "/tubes/{tube}/tasks/{id}",
    "/schedules",
    "/schedules/{schedule}",
    "/semaphores",
    "/semaphores/{semaphore}",
    "/workers",
    "/audit",
    "/sql",
    "/pool-status",
];

/// The files that the page loads, with the type of their content.
const FILES: [(&str, &str); 35] = [
    ("style.css", STYLE),
    ("views.css", STYLE),
    ("icon.svg", IMAGE),
    ("actions.js", SCRIPT),
    ("api.js", SCRIPT),
    ("app.js", SCRIPT),
    ("audit.js", SCRIPT),
    ("bulk.js", SCRIPT),
    ("chart.js", SCRIPT),
    ("dialog.js", SCRIPT),
    ("dom.js", SCRIPT),
    ("estimates.js", SCRIPT),
    ("filter.js", SCRIPT),
    ("format.js", SCRIPT),
    ("msgpack.js", SCRIPT),
    ("overview.js", SCRIPT),
    ("payload.js", SCRIPT),
    ("rates.js", SCRIPT),
    ("router.js", SCRIPT),
    ("scale.js", SCRIPT),
    ("schedule_form.js", SCRIPT),
    ("schedules.js", SCRIPT),
    ("semaphores.js", SCRIPT),
    ("series.js", SCRIPT),
    ("services.js", SCRIPT),
    ("sign_in.js", SCRIPT),
    ("table.js", SCRIPT),
    ("tabs.js", SCRIPT),
    ("task.js", SCRIPT),
    ("task_list.js", SCRIPT),
    ("tube.js", SCRIPT),
    ("tube_details.js", SCRIPT),
    ("tubes.js", SCRIPT),
    ("user.js", SCRIPT),
    ("workers.js", SCRIPT),
];

/// No external and no inline content: a payload that got into the page could not run.
const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'self'; \
                      frame-ancestors 'none'; object-src 'none'";

/// Whether this path is a file or a view of the dashboard. These need no token: they contain no data.
pub(crate) fn has(path: &str) -> bool {
    let asset = path.strip_prefix(ASSETS);
    asset.is_some_and(|name| FILES.iter().any(|file| file.0 == name))
        || VIEWS.iter().any(|view| is_at(view, path))
}

/// Whether the path belongs to the view: a name in braces is any part of a path.
fn is_at(view: &str, path: &str) -> bool {
    let (mut wanted, mut parts) = (view.split('/'), path.split('/'));
    loop {
        match (wanted.next(), parts.next()) {
            (None, None) => return true,
            (Some(name), Some(part)) if name.starts_with('{') && !part.is_empty() => {}
            (Some(name), Some(part)) if name == part => {}
            _ => return false,
        }
    }
}

/// The files and views of the dashboard. With `read_only` its page offers no actions; without documents it has no link to them.
pub(crate) fn router(read_only: bool, has_documents: bool) -> Router<SharedApp> {
    let router = FILES.into_iter().fold(Router::new(), |router, (name, kind)| {
        let (path, text) = (format!("{ASSETS}{name}"), TEXTS.text(name));
        let headers = [(CONTENT_TYPE, kind), (CONTENT_SECURITY_POLICY, POLICY)];
        router.route(&path, get(move || async move { (headers, text).into_response() }))
    });
    VIEWS.into_iter().fold(router, |router, path| {
        let headers = [(CONTENT_TYPE, HTML), (CONTENT_SECURITY_POLICY, POLICY)];
        let page = page(path, read_only, has_documents);
        router.route(path, get(move || async move { (headers, page).into_response() }))
    })
}

/// The page for a view. It refers to the files by relative paths, so that the dashboard also works below a path of a proxy.
fn page(view: &str, read_only: bool, has_documents: bool) -> axum::body::Bytes {
    let root = "../".repeat(view.matches('/').count() - 1);
    let page = TEXTS.text(PAGE).replace("{root}", &root);
    let actions = if read_only { "none" } else { "all" };
    let documents = if has_documents { "" } else { "hidden" };
    page.replace("{actions}", actions).replace("{documents}", documents).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_and_views_need_no_token() {
        for path in
            ["/", "/assets/app.js", "/tubes/a%20b", "/tubes/mail/tasks/3", "/semaphores", "/sql"]
        {
            assert!(has(path), "{path}");
        }
        for path in ["", "/v1/stats", "/tubes", "/tubes/", "/tubes/a/tasks", "/pool", "/assets/"] {
            assert!(!has(path), "{path}");
        }
    }

    /// A file that the list does not name would be packed and never served.
    #[test]
    fn every_packed_file_is_served() {
        let packed = Texts::unpack(include_bytes!(concat!(env!("OUT_DIR"), "/dashboard")));
        let packed: Vec<String> = packed.into_texts().map(|(name, _)| name).collect();
        let mut served: Vec<_> = FILES.iter().map(|file| file.0).chain([PAGE]).collect();
        served.sort_unstable();
        assert_eq!(packed, served);
    }

    #[test]
    fn a_page_finds_its_files_from_every_view() {
        let page = |view| String::from_utf8(page(view, false, true).to_vec()).unwrap();
        assert!(page("/").contains("src=\"assets/app.js\""));
        assert!(page("/workers").contains("src=\"assets/app.js\""));
        assert!(page("/tubes/{tube}").contains("src=\"../assets/app.js\""));
        assert!(page("/tubes/{tube}/tasks/{id}").contains("src=\"../../../assets/app.js\""));
        assert!(VIEWS.iter().all(|view| !page(view).contains('{')));
    }
}
