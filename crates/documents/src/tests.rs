//! Every document becomes a page without a broken tag, link or script.

use axum::body::Body;
use axum::http::HeaderValue;

use super::*;

fn rendered(text: &str) -> String {
    let is_linked = |link: &str| ["a.md", "a.svg"].contains(&link) || link.starts_with('#');
    markdown::render(text, &is_linked).1
}

/// The tags of a page, such as `a href="x"` and `/a`.
fn tags(html: &str) -> Vec<&str> {
    html.split('<').skip(1).map(|rest| rest.split('>').next().unwrap()).collect()
}

#[test]
fn blocks_become_html() {
    for (text, html) in [
        (
            "# A `b`\n\ntext\nmore\n",
            "<h1 id=\"a-b\"><a href=\"#a-b\">A <code>b</code></a></h1>\n<p>text\nmore</p>\n",
        ),
        (
            "## A\n## A\n",
            "<h2 id=\"a\"><a href=\"#a\">A</a></h2>\n<h2 id=\"a-1\"><a href=\"#a-1\">A</a></h2>\n",
        ),
        ("```sh\n<a> **b**\n```\n", "<pre><code>&lt;a&gt; **b**\n</code></pre>\n"),
        (
            "- a\n  more\n- b\n  1. c\n\ntext",
            "<ul>\n<li>a\nmore</li>\n<li>b<ol>\n<li>c</li>\n</ol>\n</li>\n</ul>\n<p>text</p>\n",
        ),
        (
            "| a | b |\n|---|:-:|\n| `x\\|y` | |\n",
            "<div class=\"scroll\"><table>\n<tr><th>a</th><th>b</th></tr>\n<tr><td><code>x|y</code></td><td></td></tr>\n</table></div>\n",
        ),
        ("<!-- a\nb -->\nc", "<p>c</p>\n"),
        ("- [ ] a", "<ul>\n<li>☐ a</li>\n</ul>\n"),
    ] {
        assert_eq!(rendered(text), html);
    }
}

#[test]
fn marks_in_lines_become_html() {
    for (text, html) in [
        ("**a *b* `**`** c", "<strong>a <em>b</em> <code>**</code></strong> c"),
        ("2 * 3 * 4, \\* and a*", "2 * 3 * 4, * and a*"),
        (
            "[a `b`](a.md) [c](#d) [e](../none.rs)",
            "<a href=\"a.md\">a <code>b</code></a> <a href=\"#d\">c</a> e",
        ),
        (
            "<http://a.example/?b&c> [d](https://e.example)",
            "<a href=\"http://a.example/?b&amp;c\">http://a.example/?b&amp;c</a> <a href=\"https://e.example\">d</a>",
        ),
        ("![alt](a.png) `` a`b ``", "<em>alt</em> <code> a`b </code>"),
        (
            "![an \"a\"](a.svg) ![none](none.svg) ![b](https://b.example/a.svg)",
            "<img src=\"a.svg\" alt=\"an &quot;a&quot;\"> <em>none</em> <em>b</em>",
        ),
        ("[a] (b) `open", "[a] (b) `open"),
    ] {
        let html = html.replace("<code> a`b </code>", "<code>a`b</code>");
        assert_eq!(rendered(text), format!("<p>{html}</p>\n"));
    }
}

#[test]
fn no_text_becomes_a_script() {
    for text in [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "[a](javascript:alert(1))",
        "[a](a.md\"onclick=\"alert(1))",
        "[a](data:text/html,x)",
        "<javascript:alert(1)>",
        "![\"onerror=\"x](a.png)",
        "![\"onerror=\"x](a.svg\"onerror=\"x.svg)",
        "# <script>\"",
        "| <script> |\n|---|\n| <b onclick=x> |",
    ] {
        let html = rendered(text);
        let is_known = |tag: &str| {
            let name = tag.trim_start_matches('/').split(' ').next().unwrap();
            ["p", "a", "em", "h1", "div", "table", "tr", "th", "td"].contains(&name)
        };
        assert!(tags(&html).into_iter().all(is_known), "{html}");
        assert!(
            !tags(&html).iter().any(|tag| tag.contains("onclick") || tag.contains("onerror")),
            "{html}"
        );
        assert!(!html.contains("href=\"javascript") && !html.contains("href=\"data"), "{html}");
    }
}

#[test]
fn every_document_has_a_page_whose_tags_close_and_whose_links_resolve() {
    let texts = documents().iter().filter(|(path, _)| path.ends_with(".md"));
    let pages: BTreeMap<_, _> =
        texts.map(|(path, found)| (path.as_str(), page(path, &found.text))).collect();
    assert!(pages.len() > 45 && pages.contains_key("guides/unique-work.md"));
    for (path, html) in &pages {
        let mut open = Vec::new();
        for tag in tags(html) {
            let name = tag.split(' ').next().unwrap();
            match name.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop(), Some(name), "{path}"),
                None if ["!doctype", "meta", "link", "img"].contains(&name) => {}
                None => open.push(name),
            }
            let Some((_, link)) = tag.split_once("href=\"") else { continue };
            let link = link.split('"').next().unwrap();
            let (file, place) = link.split_once('#').unwrap_or((link, ""));
            if link.contains("://") || place.is_empty() {
                continue;
            }
            let file =
                if file.is_empty() { (*path).to_owned() } else { resolve(path, file).unwrap() };
            let has_place = pages[file.as_str()].contains(&format!(" id=\"{place}\""));
            assert!(has_place, "{path}: {link}");
        }
        assert_eq!(open, [] as [&str; 0], "{path}");
        assert!(!html.contains("{content}") && !html.contains("{title}"), "{path}");
    }
}

#[test]
fn browsers_get_pages_and_other_clients_the_text() {
    let get = |accept: Option<&'static str>, path| {
        let headers = accept.map(|accept| (ACCEPT, HeaderValue::from_static(accept)));
        answer(path, &headers.into_iter().collect())
    };
    let kind = |response: &axum::http::Response<Body>| response.headers()[CONTENT_TYPE].clone();
    assert_eq!(kind(&get(Some("text/html,*/*"), "start.md")), "text/html; charset=utf-8");
    assert_eq!(kind(&get(Some("*/*"), "start.md")), "text/markdown; charset=utf-8");
    assert_eq!(kind(&get(None, INDEX)), "text/markdown; charset=utf-8");
    assert!(get(Some("text/html"), "start.md").headers().contains_key(CONTENT_SECURITY_POLICY));
    let drawing = get(Some("text/html,image/svg+xml"), "states.svg");
    assert_eq!(kind(&drawing), "image/svg+xml");
    assert_eq!(drawing.headers()[CONTENT_SECURITY_POLICY], DRAWING_POLICY);
    for path in ["none.md", "../README.md", "guides", "SUMMARY.md", ""] {
        assert_eq!(get(None, path).status(), StatusCode::NOT_FOUND, "{path}");
    }
    let requests = [
        (&["application/json", "TEXT/html;q=0.9"][..], true),
        (&["text/html ; level=1"], true),
        (&["text/html; q=0.0, */*"], false),
        (&["text/html;Q=0"], false),
        (&["text/htmlx, a/text/html"], false),
    ];
    for (values, is_html) in requests {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(ACCEPT, HeaderValue::from_static(value));
        }
        assert_eq!(accepts_html(&headers), is_html, "{headers:?}");
    }
    assert!(is_page("/docs") && is_page("/docs/start.md") && !is_page("/docs-old"));
}

#[test]
fn links_lead_to_documents_only_from_where_they_are() {
    assert!(is_linked("start.md", "tubes.md#a") && is_linked("guides/unique-work.md", "#a"));
    assert!(is_linked("guides/unique-work.md", "../tubes.md"));
    // A link from the root was shown as one to a document, but led to another page of the server, or to another server.
    for link in ["/tubes.md", "//tubes.md", "../tubes.md", "none.md"] {
        assert!(!is_linked("start.md", link), "{link}");
    }
}

/// The picture of the states was shown as the text of a language that draws: a server draws nothing.
#[test]
fn the_states_are_a_picture() {
    let concepts = page("concepts.md", &documents()["concepts.md"].text);
    assert!(concepts.contains("<img src=\"states.svg\" alt=\""), "{concepts}");
}

/// The documents cost under 300,000 bytes of the program; most of it is tables of the command line and of the benchmark.
#[test]
fn the_documents_are_small() {
    assert!(PACKED.len() < 300_000, "{} bytes", PACKED.len());
}
