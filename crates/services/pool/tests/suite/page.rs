//! The web page with programs that exist on every machine: stopped tasks, errors and results.

use taskyard_pool::Config;

use crate::fixture::TestPool;
use taskyard_testkit::chromium::browse;

/// Writes a small PDF; the offsets of its objects are wrong, which every reader repairs.
const CONFIG: &str = r#"
backends: 1
seed: 1
classes: [{name: fast, seconds: 300, limit: 100%}]
programs:
  sh:
    command: [/bin/sh, '{main}']
    interactive: [/bin/cat]
    input: .sh
    formats: {pdf: application/pdf}
    result: result.{format}
    example: |
      cat > result.pdf <<'END'
      %PDF-1.4
      1 0 obj <</Type /Catalog /Pages 2 0 R>> endobj
      2 0 obj <</Type /Pages /Kids [3 0 R] /Count 1>> endobj
      3 0 obj <</Type /Page /Parent 2 0 R /MediaBox [0 0 200 200] /Contents 4 0 R /Resources <<>>>> endobj
      4 0 obj <</Length 33>> stream
      1 0 0 rg 50 50 100 100 re f
      endstream endobj
      trailer <</Root 1 0 R>>
      %%EOF
      END
"#;

async fn site() -> TestPool {
    TestPool::of(Config::parse(CONFIG).unwrap()).await
}

/// A task that was stopped while it waited was shown as waiting forever.
#[tokio::test]
async fn a_task_that_is_stopped_in_the_queue_is_shown_as_stopped() {
    let site = site().await;
    let mut busy = site.start("{}", "echo up; exec sleep 1000").await;
    busy.until_output("up").await;
    browse(&format!("http://{}/pool", site.address), async |page| {
        page.until("document.querySelector('#code').value").await;
        page.click("#run").await;
        page.until("text('#state') === 'waiting' && !document.querySelector('#queue').hidden")
            .await;
        page.picture("pool-waiting").await;
        page.click("#stop").await;
        page.until("text('#state') === 'stopped' && document.querySelector('#queue').hidden").await;
        page.until("!document.querySelector('#run').disabled").await;
        assert_eq!(page.text("#error").await, "");
        site.until(|status| status.queued == 0 && status.counts.left == 1).await;
        drop(busy);
        // The next task runs normally.
        page.click("#run").await;
        page.until("text('#state') === 'done'").await;
        // Now the pool knows how long tasks run.
        let mut busy = site.start("{}", "echo up; exec sleep 1000").await;
        busy.until_output("up").await;
        page.click("#run").await;
        page.until("/^Probably in [0-9]+( to [0-9]+)? s. At most [0-9]+ s.$/.test(text('#left'))")
            .await;
        drop(busy);
        page.until("text('#state') === 'done'").await;
        assert_eq!(page.complaints().await, [] as [String; 0]);
    })
    .await;
}

/// The final error of a waiting task is shown like any other.
#[tokio::test]
async fn a_waiting_task_of_a_stopping_pool_is_shown_as_failed() {
    let site = site().await;
    let mut busy = site.start("{}", "echo up; exec sleep 1000").await;
    busy.until_output("up").await;
    browse(&format!("http://{}/pool", site.address), async |page| {
        page.until("document.querySelector('#code').value").await;
        page.click("#run").await;
        page.until("text('#state') === 'waiting'").await;
        site.pool.stop(std::time::Duration::ZERO).await;
        page.until("text('#state') === 'failed'").await;
        assert_eq!(page.text("#error").await, "the pool is stopping");
    })
    .await;
}

/// A PDF could only be saved.
#[tokio::test]
async fn a_pdf_is_shown() {
    let site = site().await;
    browse(&format!("http://{}/pool", site.address), async |page| {
        page.until("document.querySelector('#code').value").await;
        page.click("#run").await;
        page.until("text('#state') === 'done'").await;
        let shown = "document.querySelector('#document object')";
        page.until(&format!("{shown}?.type === 'application/pdf' && {shown}.offsetHeight > 200"))
            .await;
        page.until("document.querySelector('#picture').hidden").await;
        page.until("document.querySelector('#download').download === 'result.pdf'").await;
        assert_eq!(page.complaints().await, [] as [String; 0]);
    })
    .await;
}

/// The input field of a session had no visible label.
#[tokio::test]
async fn every_field_has_a_visible_label() {
    let site = site().await;
    browse(&format!("http://{}/pool", site.address), async |page| {
        page.until("document.querySelector('#code').value").await;
        let unnamed = "[...document.querySelectorAll('main input, main select, main textarea')]\
                       .filter((one) => ![...one.labels].some((label) => label.offsetHeight > 0))\
                       .map((one) => one.id).join()";
        assert_eq!(page.run(&format!("return {unnamed}")).await, "");
        assert_eq!(page.text("#shell h2").await, "Interactive session");
    })
    .await;
}
