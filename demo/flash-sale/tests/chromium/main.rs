//! The page in a real Chromium: a sale is clicked through and its result read, nothing complains, and the second visit costs a 304.
//!
//! An optional row of the closing table: where there is no Chromium, it says so. With `FLASH_SALE_PICTURES=FOLDER` it leaves pictures of the
//! page there, wide, narrow and dark.

mod browser;

use browser::Browser;
use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let Some(chromium) = browser::found() else {
        println!("not run: no chromium on this machine");
        return ExitCode::SUCCESS;
    };
    let trial = Trial::test("a_sale_is_clicked_through_in_chromium", move || {
        let runtime = tokio::runtime::Runtime::new().map_err(|error| Failed::from(error.to_string()))?;
        runtime.block_on(clicked_through(&chromium)).map_err(Failed::from)
    });
    libtest_mimic::run(&arguments, vec![trial]).exit_code()
}

/// A stage that is open; it ends with this.
struct Stage {
    child: Child,
    url: String,
}

impl Stage {
    fn open() -> Result<Stage, String> {
        let mut child = Command::new(env!("CARGO_BIN_EXE_flash-sale"))
            .args(["--listen", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut line = String::new();
        let out = child.stdout.as_mut().ok_or("no pipe")?;
        BufReader::new(out).read_line(&mut line).map_err(|error| error.to_string())?;
        let url = line.trim().rsplit(' ').next().unwrap_or_default().to_string() + "/";
        Ok(Stage { child, url })
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const VERDICT: &str = "document.getElementById('verdict').hidden ? '' : document.getElementById('verdict').textContent";

/// Clicks a strategy and waits for the verdict.
async fn sale(browser: &mut Browser, strategy: &str) -> Result<String, String> {
    let button = format!("[data-strategy=\"{strategy}\"]");
    until(browser, &format!("String(!!document.querySelector('{button}:not(:disabled)'))"), "true", 30).await?;
    browser.click(&button).await?;
    // It runs: the old verdict is gone.
    until(
        browser,
        &format!("String(state.running || state.rows.some((row) => row.strategy === '{strategy}'))"),
        "true",
        30,
    )
    .await?;
    let limit = Instant::now() + Duration::from_secs(120);
    loop {
        let ours = browser.evaluate("state.running ? '' : state.strategy").await?;
        let verdict = browser.evaluate(VERDICT).await?;
        if ours == strategy && !verdict.is_empty() {
            return Ok(verdict);
        }
        if Instant::now() > limit {
            let said = browser.evaluate("document.getElementById('said').textContent").await?;
            return Err(format!("{strategy} does not end: {said}"));
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
}

async fn until(browser: &mut Browser, expression: &str, wanted: &str, seconds: u64) -> Result<(), String> {
    let limit = Instant::now() + Duration::from_secs(seconds);
    while browser.evaluate(expression).await.unwrap_or_default() != wanted {
        if Instant::now() > limit {
            return Err(format!("{expression} is not {wanted}"));
        }
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    Ok(())
}

async fn clicked_through(chromium: &std::path::Path) -> Result<(), String> {
    let stage = Stage::open()?;
    let mut browser = Browser::start(chromium).await?;
    browser.command("Page.navigate", json!({ "url": stage.url })).await?;

    let oversold = sale(&mut browser, "none").await?;
    check(oversold.starts_with("Oversold"), &oversold)?;
    let right = sale(&mut browser, "lock").await?;
    check(right == "The books are right.", &right)?;
    let left = browser.evaluate("document.getElementById('left').textContent").await?;
    check(left == "0", &left)?;
    let bars = browser.evaluate("String(document.querySelectorAll('#chart rect').length)").await?;
    check(bars == "2", &bars)?;

    if let Some(folder) = std::env::var_os("FLASH_SALE_PICTURES") {
        pictures(&mut browser, std::path::Path::new(&folder)).await?;
    }

    // The second visit: the index is asked for and has not changed, the assets are not asked for at all.
    browser.seen.clear();
    browser.command("Page.navigate", json!({ "url": stage.url })).await?;
    let limit = Instant::now() + Duration::from_secs(30);
    while !browser.seen.iter().any(|(url, status)| *url == stage.url && *status == 304) {
        check(Instant::now() < limit, &format!("no 304: {:?}", browser.seen))?;
        let _ = browser.evaluate("1").await?;
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    until(&mut browser, "String(document.querySelectorAll('#chart rect').length >= 2)", "true", 30).await?;
    check(!browser.seen.iter().any(|(url, _)| url.contains("/assets/")), &format!("{:?}", browser.seen))?;
    check(browser.complaints.is_empty(), &format!("{:?}", browser.complaints))
}

fn check(holds: bool, found: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(format!("not so: {found}")) }
}

/// For whoever wants to see it: at the end, and in the middle of a pause.
async fn pictures(browser: &mut Browser, folder: &std::path::Path) -> Result<(), String> {
    for strategy in ["process-lock", "for-update", "optimistic", "cas", "fenced", "striped"] {
        sale(browser, strategy).await?;
    }
    for (name, width, scheme) in [("wide", 1280, "light"), ("narrow", 390, "light"), ("dark", 1280, "dark")] {
        browser.picture(&folder.join(format!("{name}.png")), width, scheme).await?;
    }
    browser.click("#pause").await?;
    browser.click("[data-strategy=\"lock\"]").await?;
    until(browser, "String(state.frozen === 0)", "true", 30).await?;
    browser.picture(&folder.join("frozen.png"), 1280, "light").await?;
    browser.picture(&folder.join("frozen-narrow.png"), 390, "dark").await?;
    until(browser, "String(state.running)", "false", 60).await?;
    browser.click("#pause").await?;
    sale(browser, "lock").await.map(|_| ())?;
    // As it was before.
    browser.command("Page.reload", json!({})).await?;
    until(browser, "String(document.querySelectorAll('#chart rect').length > 0)", "true", 30).await
}
