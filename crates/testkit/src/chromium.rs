//! Drives Chromium by the WebDriver protocol: JSON over HTTP to the driver that comes with it.

use std::ffi::OsString;
use std::future::poll_fn;
use std::io::{BufRead, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::task::Poll;
use std::{env, thread};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use reqwest::{Client, Method};
use serde_json::{Value, json};

use crate::skipped::find_tool;

/// How long the page may take to look as it should, in milliseconds.
const PATIENCE_MS: u64 = 30_000;

const FLAGS: [&str; 10] = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,800",
];

/// The codes of WebDriver for keys without a character.
pub const TAB: char = '\u{e004}';
/// The key Enter.
pub const ENTER: char = '\u{e007}';
/// The key Escape.
pub const ESCAPE: char = '\u{e00c}';
/// The key with an arrow to the left.
pub const LEFT: char = '\u{e012}';
/// The key with an arrow to the right.
pub const RIGHT: char = '\u{e014}';

/// The key under which WebDriver names an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// What the conditions of tests may use.
const PRELUDE: &str = "const text = (place) => document.querySelector(place)?.textContent ?? '';";

/// Ends, once this process has ended, all processes whose command line contains the folder, and removes the folder.
const CLEAN_UP: &str = r#"
read -r line
for process in /proc/[0-9]*; do
    id=${process#/proc/}
    if [ "$id" != $$ ] && grep -qF "$0" "$process/cmdline" 2> /dev/null; then kill -9 "$id"; fi
done
rm -rf "$0"
"#;

/// Browsers that the tests of this process have used and can use again: a start takes longer than most tests.
static IDLE: Mutex<Vec<ChromeDriver>> = Mutex::new(Vec::new());

/// Opens the address in an empty tab and runs the visit. The browser is gone when the visit panics, and otherwise with this
/// process. Without a browser this fails, unless the tests were told that there is none.
pub async fn browse(url: &str, visit: impl AsyncFnOnce(&Page)) {
    let Some((browser, driver)) = programs() else { return };
    let idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let driver = match idle {
        Some(driver) => driver,
        None => ChromeDriver::start(&driver, &browser).await,
    };
    let page = Page::new(driver.session.clone());
    let visited = caught(async {
        page.send(Method::POST, "url", json!({ "url": url })).await;
        visit(&page).await;
        page.replace_tab().await;
    })
    .await;
    match visited {
        Ok(()) => IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(driver),
        Err(panic) => {
            drop(driver);
            resume_unwind(panic);
        }
    }
}

/// Runs to the end or to a panic, which is given back instead of going on.
async fn caught(work: impl Future<Output = ()>) -> thread::Result<()> {
    let mut work = pin!(work);
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context))) {
        Ok(polled) => polled.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// Where Chromium and its driver are; nothing when the tests are to go on without.
fn programs() -> Option<(PathBuf, PathBuf)> {
    let browser = find_tool("TASKYARD_CHROMIUM", "/usr/bin/chromium")?;
    let driver = find_tool("TASKYARD_CHROMEDRIVER", "/usr/bin/chromedriver")?;
    Some((browser, driver))
}

/// A browser and its driver, on a port that it chose itself. Dropping this ends both; so does the end of this process.
struct ChromeDriver {
    process: Child,
    /// The URL of the session.
    session: String,
    // The driver ends at its next output if this pipe is closed.
    _output: BufReader<ChildStdout>,
    /// Dropped before the driver's process is awaited.
    cleanup: Option<BrowserCleanup>,
}

/// A shell that ends the processes of a browser and removes its files, when this is dropped or this process has ended.
struct BrowserCleanup {
    shell: Child,
    /// The shell begins when this is closed.
    running: Option<ChildStdin>,
}

impl BrowserCleanup {
    fn new(folder: &Path) -> Self {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(CLEAN_UP).arg(folder).stdin(Stdio::piped());
        let mut shell = shell.spawn().expect("a shell can be started");
        BrowserCleanup { running: shell.stdin.take(), shell }
    }
}

impl Drop for BrowserCleanup {
    fn drop(&mut self) {
        self.running = None;
        let _ = self.shell.wait();
    }
}

impl ChromeDriver {
    /// Starts a browser without any state.
    async fn start(program: &Path, browser: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap().keep();
        let cleanup = Some(BrowserCleanup::new(&folder));
        let mut log = OsString::from("--log-path=");
        log.push(folder.join("log"));
        let mut command = Command::new(program);
        command.arg("--port=0").arg(log).env("TMPDIR", &folder);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().expect("the driver starts");
        let mut output = BufReader::new(process.stdout.take().expect("its output is ours"));
        let mut said = String::new();
        while output.read_line(&mut said).is_ok_and(|size| size > 0) {
            if let Some((_, port)) = said.split_once("successfully on port ") {
                let url = format!("http://127.0.0.1:{}", port.trim().trim_end_matches('.'));
                let session = String::new();
                let mut driver = ChromeDriver { process, session, _output: output, cleanup };
                driver.session = open_browser(&url, browser, &folder).await;
                return driver;
            }
        }
        let _ = process.kill();
        let _ = process.wait();
        panic!("the driver did not start:\n{said}");
    }
}

impl Drop for ChromeDriver {
    fn drop(&mut self) {
        self.cleanup = None;
        let _ = self.process.wait();
    }
}

/// Opens a browser with the driver at this URL and returns the URL of the session.
async fn open_browser(url: &str, browser: &Path, folder: &Path) -> String {
    let profile = folder.join("profile");
    let mut flags = FLAGS.map(String::from).to_vec();
    flags.push(format!("--user-data-dir={}", profile.display()));
    let wanted = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": { "binary": browser, "args": flags },
            "goog:loggingPrefs": { "browser": "ALL" },
            "timeouts": { "script": PATIENCE_MS, "pageLoad": PATIENCE_MS },
        } } });
    let answer = send(&client(), Method::POST, &format!("{url}/session"), wanted).await;
    let session = answer["sessionId"].as_str().expect("a session has a name");
    format!("{url}/session/{session}")
}

/// A client of the driver; one for each test, because its connections end with the runtime of the test.
/// The folder of pictures.
fn pictures() -> PathBuf {
    if let Some(folder) = env::var_os("TASKYARD_PICTURES") {
        return folder.into();
    }
    // The program is target/PROFILE/deps/NAME.
    let program = env::current_exe().expect("a test program knows its path");
    program.ancestors().nth(3).expect("the target folder").join("pictures")
}

fn client() -> Client {
    Client::builder().no_proxy().build().expect("a client without options can be made")
}

/// One browser window with the page in it.
pub struct Page {
    client: Client,
    session: String,
}

impl Page {
    fn new(session: String) -> Self {
        Page { client: client(), session }
    }

    /// Closes the tab, after another was opened that has no history, no storage and the usual screen.
    async fn replace_tab(&self) {
        self.complaints().await;
        let new = self.send(Method::POST, "window/new", json!({ "type": "tab" })).await;
        self.send(Method::DELETE, "window", json!({})).await;
        self.send(Method::POST, "window", json!({ "handle": new["handle"] })).await;
    }

    /// Runs a script in the page and answers what it returns.
    pub async fn run(&self, script: &str) -> Value {
        let script = format!("{PRELUDE} {script}");
        self.send(Method::POST, "execute/sync", json!({ "script": script, "args": [] })).await
    }

    /// Waits until the expression is true in the page. The browser looks again and again; the
    /// driver gives up when that takes too long.
    #[track_caller]
    pub fn until(&self, condition: &str) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        let script = format!(
            "{PRELUDE} const done = arguments[0];
             const look = () => ({condition}) ? done(true) : setTimeout(look, 20);
             look();"
        );
        async move {
            let wanted = json!({ "script": script, "args": [] });
            let url = format!("{}/execute/async", self.session);
            if let Err(why) = attempt(&self.client, Method::POST, &url, wanted).await {
                let shown = self.run("return document.body.innerText").await;
                let shown = shown.as_str().unwrap_or_default();
                panic!("{caller}: waited in vain for {condition}: {why}; the page says:\n{shown}");
            }
        }
    }

    /// The text of the first element there.
    pub async fn text(&self, place: &str) -> String {
        let text = self.run(&format!("return text({})", json!(place))).await;
        text.as_str().unwrap_or_default().into()
    }

    /// Clicks as a person would: it fails when something else is in the way.
    pub async fn click(&self, place: &str) {
        let element = self.find(place).await;
        self.send(Method::POST, &format!("element/{element}/click"), json!({})).await;
    }

    /// Keeps a picture of the page, for a person to look at, in the folder `pictures` beside the folder of the test program's
    /// profile: `target/pictures`. The variable TASKYARD_PICTURES names another folder.
    pub async fn picture(&self, name: &str) {
        let folder = pictures();
        std::fs::create_dir_all(&folder).expect("the folder of pictures can be created");
        let image = self.send(Method::GET, "screenshot", json!({})).await;
        let image = BASE64_STANDARD.decode(image.as_str().unwrap_or_default());
        let path = folder.join(format!("{name}.png"));
        std::fs::write(path, image.expect("a picture is base64")).expect("a picture can be kept");
    }

    /// Opens another address in the same window.
    pub async fn open(&self, url: &str) {
        self.send(Method::POST, "url", json!({ "url": url })).await;
    }

    /// Loads the page again.
    pub async fn reload(&self) {
        self.send(Method::POST, "refresh", json!({})).await;
    }

    /// Goes back in the history of the window.
    pub async fn back(&self) {
        self.send(Method::POST, "back", json!({})).await;
    }

    /// Presses and releases keys one after the other, wherever the focus is.
    pub async fn press(&self, keys: &str) {
        let strokes = keys.chars().flat_map(|key| {
            let key = key.to_string();
            [json!({ "type": "keyDown", "value": key }), json!({ "type": "keyUp", "value": key })]
        });
        let strokes: Vec<Value> = strokes.collect();
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": strokes });
        self.send(Method::POST, "actions", json!({ "actions": [keyboard] })).await;
    }

    /// Shows the page on a screen of this many pixels.
    pub async fn resize(&self, width: u32, height: u32) {
        let screen =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.control("Emulation.setDeviceMetricsOverride", screen).await;
    }

    /// Makes the user prefer dark or light colours.
    pub async fn prefer_dark(&self, dark: bool) {
        let value = if dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": value }]);
        self.control("Emulation.setEmulatedMedia", json!({ "features": features })).await;
    }

    /// Sends a command of the browser's own protocol.
    async fn control(&self, command: &str, parameters: Value) {
        let body = json!({ "cmd": command, "params": parameters });
        self.send(Method::POST, "goog/cdp/execute", body).await;
    }

    /// Types into a field.
    pub async fn fill(&self, place: &str, text: &str) {
        let element = self.find(place).await;
        let typed = json!({ "text": text });
        self.send(Method::POST, &format!("element/{element}/value"), typed).await;
    }

    /// Types a text into a field in place of what it has.
    pub async fn replace(&self, place: &str, text: &str) {
        let element = self.find(place).await;
        self.send(Method::POST, &format!("element/{element}/clear"), json!({})).await;
        self.fill(place, text).await;
    }

    /// What the browser complained about so far: errors of scripts, refused files, policies.
    pub async fn complaints(&self) -> Vec<String> {
        let log = self.send(Method::POST, "se/log", json!({ "type": "browser" })).await;
        let entries = log.as_array().cloned().unwrap_or_default();
        entries.iter().filter_map(|entry| entry["message"].as_str().map(String::from)).collect()
    }

    async fn find(&self, place: &str) -> String {
        let wanted = json!({ "using": "css selector", "value": place });
        let found = self.send(Method::POST, "element", wanted).await;
        found[ELEMENT].as_str().expect("an element has a name").into()
    }

    async fn send(&self, method: Method, path: &str, body: Value) -> Value {
        send(&self.client, method, &format!("{}/{path}", self.session), body).await
    }
}

async fn send(client: &Client, method: Method, url: &str, body: Value) -> Value {
    attempt(client, method, url, body).await.unwrap_or_else(|why| panic!("{url}: {why}"))
}

async fn attempt(client: &Client, method: Method, url: &str, body: Value) -> Result<Value, String> {
    let answer = client.request(method, url).json(&body).send().await;
    let answer = answer.map_err(|error| error.to_string())?;
    let (status, mut body) = (answer.status(), answer.json::<Value>().await.unwrap_or_default());
    if status.is_success() {
        return Ok(body["value"].take());
    }
    let message = body["value"]["message"].as_str().unwrap_or_default();
    Err(message.lines().next().unwrap_or_default().into())
}
