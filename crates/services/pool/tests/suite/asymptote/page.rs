//! The web page in a browser.

use super::{PICTURE, site, site_lasting};
use taskyard_testkit::chromium::browse;

#[tokio::test]
async fn code_becomes_a_picture_and_a_mistake_becomes_a_message() {
    let Some(site) = site().await else { return };
    browse(&format!("http://{}/pool", site.address), async |page| {
        page.until("text('#state') === 'ready' && document.querySelector('#code').value").await;
        let times =
            "[...document.querySelectorAll('#duration option')].map((one) => one.value).join()";
        page.until(&format!("{times} === ',3,10,30'")).await;
        // The shipped example itself is drawn.
        page.click("#run").await;
        page.until("text('#state') === 'done'").await;
        let drawn = "document.querySelector('#picture').naturalWidth > 50";
        page.until(drawn).await;
        page.run("document.querySelector('#code').value = ''").await;
        page.fill("#code", "draw(unitcircl);").await;
        page.click("#run").await;
        page.until("text('#state') === 'failed' && text('#output').includes('unitcircl')").await;
        assert_eq!(page.text("#error").await, "the program exited with status 1");
        page.run("document.querySelector('#code').value = ''").await;
        page.fill("#code", PICTURE).await;
        page.click("#run").await;
        page.until("text('#state') === 'done' && !document.querySelector('#picture').hidden").await;
        assert_eq!(page.complaints().await, [] as [String; 0]);
    })
    .await;
}

#[tokio::test]
async fn a_waiting_client_sees_a_countdown() {
    // A browser is slow on a busy machine.
    let Some(site) = site_lasting(1, 300.0).await else { return };
    let mut busy = site.connect("/pool/run/asy").await;
    busy.send("options {\"duration\": 300}").await;
    busy.file("main.asy", "while (true) {}").await;
    busy.send("start {}").await;
    busy.until("output").await;
    browse(&format!("http://{}/pool", site.address), async |page| {
        page.until("document.querySelector('#code').value").await;
        page.click("#run").await;
        page.until("text('#state') === 'waiting' && text('#ahead') === 'You are next.'").await;
        page.run("window.first = text('#left')").await;
        page.until("/^At most \\d+ s\\.$/.test(window.first) && text('#left') !== window.first")
            .await;
        drop(busy);
        page.until("text('#state') === 'done'").await;
        assert_eq!(page.complaints().await, [] as [String; 0]);
    })
    .await;
}

#[tokio::test]
async fn a_session_answers() {
    let Some(site) = site().await else { return };
    browse(&format!("http://{}/pool", site.address), async |page| {
        page.until("document.querySelector('#code').value").await;
        page.click("#open").await;
        page.until("!document.querySelector('#line').disabled").await;
        page.fill("#line", "write(6 * 7);\u{e007}").await;
        page.until("text('#talk').includes('42')").await;
        page.click("#leave").await;
        page.until("document.querySelector('#line').disabled").await;
    })
    .await;
    site.until_empty().await;
}
