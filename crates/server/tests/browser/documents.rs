//! The documents that a server has at `/docs`.

use taskyard_server::ExtraRoutes;
use taskyard_testkit::chromium::browse;

use crate::assert_quiet;
use crate::site::DashboardServer;

#[tokio::test]
async fn the_documents_are_pages_without_scripts() {
    let routes =
        ExtraRoutes { router: taskyard_documents::router(), is_open: taskyard_documents::is_page };
    let server = DashboardServer::configured(Some("right-0123456789"), |config| {
        config.extra_routes.push(routes);
    })
    .await;
    // No token is needed, and no policy is violated.
    browse(&format!("{}/docs", server.url()), async |page| {
        page.until("text('article h1') === 'Documentation'").await;
        page.click("a[href='guides/unique-work.md']").await;
        page.until("text('article h1') === 'Unique work'").await;
        page.picture("document").await;
        assert_eq!(page.run("return document.title").await, "Unique work · Taskyard");
        assert_eq!(page.run("return document.scripts.length").await, 0);
        page.click("a[href='../tubes.md#keys']").await;
        page.until("location.hash === '#keys' && text('#keys') === 'Keys'").await;
        page.until("text('article table td code') !== ''").await;
        page.click("#nav a[aria-current]").await;
        page.until("text('article h1') === 'Documentation'").await;
        assert_quiet(page).await;
        page.click("#nav a").await;
        page.until("text('#documents') === 'Documents'").await;
        page.click("#documents").await;
        page.until("text('article h1') === 'Documentation'").await;
    })
    .await;
}

/// A server that is built without them has no link to them.
#[tokio::test]
async fn a_dashboard_without_documents_has_no_link() {
    let server = DashboardServer::new(None).await;
    browse(&server.url(), async |page| {
        page.until("text('#state') === 'live'").await;
        assert_eq!(page.run("return document.querySelector('#documents').hidden").await, true);
        assert_quiet(page).await;
    })
    .await;
}
