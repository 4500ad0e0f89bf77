//! The documents that each server of this program has at `/docs`.

use crate::pool::{CONFIG, config};
use crate::process::{Serving, TOKEN, binary, http_get, http_get_with, token_file};

// The documents had tests, and the routes that a program adds had tests, but a program without them would have passed all.
#[test]
fn a_server_with_a_token_shows_its_documents_without_it_and_nothing_else() {
    let (folder, file) = config(CONFIG);
    let token = token_file(folder.path());
    let pool = file.to_str().unwrap();
    let flags = ["--token-file", &token, "--pool", pool];
    let server = Serving::folder(&folder.path().join("data"), &flags);

    for path in ["/docs/", "/docs/tubes.md"] {
        let page = http_get_with("Accept: text/html,*/*;q=0.8", &server.url, path);
        assert!(page.starts_with("HTTP/1.1 200"), "{path}: {page}");
        assert!(page.contains("content-type: text/html; charset=utf-8\r\n"), "{path}: {page}");
        assert!(page.contains("content-security-policy: default-src 'self'"), "{path}: {page}");
        let text = http_get(&server.url, path);
        assert!(text.starts_with("HTTP/1.1 200"), "{path}: {text}");
        assert!(text.contains("content-type: text/markdown; charset=utf-8\r\n"), "{path}: {text}");
        assert!(text.contains("\r\n\r\n# "), "{path}: {text}");
    }
    for (path, status) in [
        ("/docs/none.md", 404),
        ("/docs/..%2f..%2fetc/passwd", 404),
        ("/docsx", 401),
        ("/v1/tubes", 401),
        ("/pool/status", 401),
    ] {
        let answer = http_get(&server.url, path);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
    }
    // The routes of the pool are there, for requests with the token.
    let bearer = format!("Authorization: Bearer {TOKEN}");
    let status = http_get_with(&bearer, &server.url, "/pool/status");
    assert!(status.starts_with("HTTP/1.1 200"), "{status}");
}

#[test]
fn the_demo_shows_the_documents() {
    let mut demo = binary();
    let server = Serving::start(demo.args(["demo", "--port", "0"]));
    assert!(http_get(&server.url, "/docs/tubes.md").starts_with("HTTP/1.1 200"));
}
