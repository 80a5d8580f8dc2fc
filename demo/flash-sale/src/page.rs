//! The static page, apart from the nodes: `index.html` is asked for every time and answered 304 while it is the same; what it names
//! has a hash of its content in its name and never changes.

use crate::Result;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// What is built in, by name and type.
const FILES: [(&str, &str, &str); 3] = [
    ("index.html", "text/html; charset=utf-8", include_str!("../page/index.html")),
    ("style.css", "text/css; charset=utf-8", include_str!("../page/style.css")),
    ("app.js", "text/javascript; charset=utf-8", include_str!("../page/app.js")),
];

/// Where the files come from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// From this program.
    BuiltIn,
    /// From a folder, as they are at the moment.
    Folder(PathBuf),
}

/// The files at one moment.
pub(crate) struct Page {
    index: String,
    /// Name with hash, type, content.
    assets: Vec<(String, &'static str, String)>,
    etag: String,
    /// Whole seconds, as HTTP counts.
    changed: u64,
}

impl Page {
    /// Reads them and gives the assets the names that they are served under.
    pub(crate) fn read(source: &Source) -> Result<Page> {
        let mut texts = Vec::new();
        let mut changed = 0;
        for (name, _, built_in) in FILES {
            let (text, time) = match source {
                Source::BuiltIn => (built_in.to_string(), modified(&std::env::current_exe()?)?),
                Source::Folder(folder) => (std::fs::read_to_string(folder.join(name))?, modified(&folder.join(name))?),
            };
            changed = changed.max(time);
            texts.push(text);
        }
        let mut index = texts.remove(0);
        let mut assets = Vec::new();
        for ((name, kind, _), text) in FILES[1..].iter().zip(texts) {
            let (stem, ending) = name.split_once('.').unwrap_or((name, ""));
            let hashed = format!("{stem}.{}.{ending}", hash(&text));
            index = index.replace(&format!("/assets/{name}"), &format!("/assets/{hashed}"));
            assets.push((hashed, *kind, text));
        }
        let etag = format!("\"{}\"", hash(&index));
        Ok(Page { index, assets, etag, changed })
    }

    /// The answer to a request for the index.
    pub(crate) fn index(&self, asked: &HeaderMap) -> Response {
        let mut answer = if self.unchanged(asked) {
            StatusCode::NOT_MODIFIED.into_response()
        } else {
            ([(header::CONTENT_TYPE, FILES[0].1)], self.index.clone()).into_response()
        };
        let headers = answer.headers_mut();
        let mut insert = |name, value: &str| {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(name, value);
            }
        };
        insert(header::ETAG, &self.etag);
        insert(header::LAST_MODIFIED, &http_date(self.changed));
        insert(header::CACHE_CONTROL, "no-cache");
        answer
    }

    /// By the tag if there is one, else by the time: as RFC 9110 wants it.
    fn unchanged(&self, asked: &HeaderMap) -> bool {
        let text = |name| asked.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        if let Some(tags) = text(header::IF_NONE_MATCH) {
            let weak = |tag: &str| tag.trim().trim_start_matches("W/").to_string();
            return tags.split(',').any(|tag| tag.trim() == "*" || weak(tag) == self.etag);
        }
        // Ours are the only times that are sent back: the same text is the same second.
        text(header::IF_MODIFIED_SINCE).and_then(parse_http_date).is_some_and(|since| self.changed <= since)
    }

    /// The answer to a request for an asset: for ever, since another content has another name.
    pub(crate) fn asset(&self, name: &str) -> Response {
        match self.assets.iter().find(|(hashed, _, _)| hashed == name) {
            Some((_, kind, text)) => {
                let headers =
                    [(header::CONTENT_TYPE, *kind), (header::CACHE_CONTROL, "public, max-age=31536000, immutable")];
                (headers, text.clone()).into_response()
            }
            None => (StatusCode::NOT_FOUND, "there is no such file\n").into_response(),
        }
    }
}

fn hash(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn modified(path: &Path) -> Result<u64> {
    let time = std::fs::metadata(path)?.modified()?;
    Ok(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs().min(now()))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// `Sun, 06 Nov 1994 08:49:37 GMT`
fn http_date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Civil from days, with years that begin in March.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = year_of_era + era * 400 + next;
    format!(
        "{}, {day:02} {} {year} {:02}:{:02}:{:02} GMT",
        DAYS[(days % 7) as usize],
        MONTHS[month as usize - 1],
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

/// The form above; other forms are old and nobody has to send them.
fn parse_http_date(text: &str) -> Option<u64> {
    let words: Vec<&str> = text.split([' ', ':']).filter(|word| !word.is_empty()).collect();
    let [_, day, month, year, hour, minute, second, "GMT"] = words[..] else { return None };
    let (day, year): (u64, u64) = (day.parse().ok()?, year.parse().ok()?);
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    let clock: [u64; 3] = [hour.parse().ok()?, minute.parse().ok()?, second.parse().ok()?];
    if !(1970..10_000).contains(&year) || !(1..=31).contains(&day) || clock[0] > 23 || clock[1] > 59 || clock[2] > 60 {
        return None;
    }
    let (shifted_year, shifted_month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, year_of_era) = (shifted_year / 400, shifted_year % 400);
    let of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year;
    let days = (era * 146_097 + of_era).checked_sub(719_468)?;
    Some(days * 86_400 + clock[0] * 3600 + clock[1] * 60 + clock[2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_and_read() {
        assert_eq!(http_date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(http_date(951_782_400), "Tue, 29 Feb 2000 00:00:00 GMT");
        for seconds in (0..4_000_000_000).step_by(12_345_677) {
            assert_eq!(parse_http_date(&http_date(seconds)), Some(seconds));
        }
        for garbage in ["", "yesterday", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:37"] {
            assert_eq!(parse_http_date(garbage), None, "{garbage}");
        }
    }

    fn asked(name: header::HeaderName, value: &str) -> HeaderMap {
        [(name, value.parse().expect("a header"))].into_iter().collect()
    }

    #[test]
    fn the_index_is_sent_again_only_after_a_change() {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, _, text) in FILES {
            std::fs::write(folder.path().join(name), text).expect("a file");
        }
        let source = Source::Folder(folder.path().into());
        let page = Page::read(&source).expect("three files");
        let first = page.index(&HeaderMap::new());
        assert_eq!(first.status(), 200);
        assert_eq!(first.headers()[header::CACHE_CONTROL], "no-cache");
        let tag = first.headers()[header::ETAG].to_str().expect("text").to_string();
        let time = first.headers()[header::LAST_MODIFIED].to_str().expect("text").to_string();
        for same in [asked(header::IF_NONE_MATCH, &tag), asked(header::IF_MODIFIED_SINCE, &time)] {
            assert_eq!(page.index(&same).status(), 304);
        }
        assert_eq!(page.index(&asked(header::IF_NONE_MATCH, "\"x\"")).status(), 200);
        let before = asked(header::IF_MODIFIED_SINCE, "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(page.index(&before).status(), 200);

        // A change of an asset is a change of its name, and so of the index.
        let old = page.assets[0].0.clone();
        assert_eq!(page.asset(&old).status(), 200);
        assert!(page.asset(&old).headers()[header::CACHE_CONTROL].to_str().expect("text").ends_with("immutable"));
        std::fs::write(folder.path().join("style.css"), "body { color: teal }").expect("a file");
        let page = Page::read(&source).expect("three files");
        assert_eq!(page.index(&asked(header::IF_NONE_MATCH, &tag)).status(), 200);
        assert_eq!(page.asset(&old).status(), 404);
        assert!(page.index.contains(&page.assets[0].0) && page.index.contains(&page.assets[1].0));
    }
}
