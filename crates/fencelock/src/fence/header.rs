//! The fence over HTTP: the token as a header, `Fencing-Token: 1187;mode=exclusive;name="shop/stock/42";store="redis"`.

use super::checked;
use crate::error::{Error, ErrorKind, Result};
use crate::store::Mode;
use crate::token::Token;
use std::fmt::Write as _;

/// The header's name. Header names have no case; this is the spelling that every HTTP library takes.
pub const NAME: &str = "fencing-token";

/// No header of ours is longer.
const LONGEST: usize = 2048;

/// What the header says of a token.
///
/// ```
/// use fencelock::{Token, fence::header, store::Mode};
/// let token = Token::from_parts(1187, Mode::Exclusive, "shop/stock/42", "redis").unwrap();
/// let text = header::write(&token);
/// assert_eq!(text, r#"1187;mode=exclusive;name="shop/stock/42";store="redis""#);
/// assert_eq!(header::read(&text)?, token);
/// # Ok::<(), fencelock::Error>(())
/// ```
#[must_use]
pub fn write(token: &Token) -> String {
    let mut text = format!("{};mode={};name=", token.number(), token.mode());
    quote(&mut text, token.name());
    text.push_str(";store=");
    quote(&mut text, token.label());
    text
}

fn quote(into: &mut String, text: &str) {
    into.push('"');
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            into.push('\\');
        }
        let _ = into.write_char(c);
    }
    into.push('"');
}

/// The token of a header.
///
/// Parameters come in any order, and those that are not known are passed over. What the header says is the client's word:
/// that the name is the one of what is being accessed is for the resource to see to.
///
/// # Errors
/// `InvalidInput` for whatever is not such a header, a permit's among them.
pub fn read(text: &str) -> Result<Token> {
    let token =
        parse(text).ok_or_else(|| Error::new(ErrorKind::InvalidInput, "the Fencing-Token header is not one"))?;
    checked(&token)?;
    Ok(token)
}

fn parse(text: &str) -> Option<Token> {
    if text.len() > LONGEST {
        return None;
    }
    let end = text.find(';')?;
    let number = text[..end].trim_matches(' ');
    // No sign, no blank, no leading zero: one number, one spelling.
    let plain = number.bytes().all(|b| b.is_ascii_digit()) && !number.starts_with('0');
    let number = number.parse().ok().filter(|_| plain)?;
    let (mut mode, mut name, mut label) = (None, None, None);
    let mut rest = &text[end..];
    while !rest.is_empty() {
        let (key, value, after) = parameter(rest)?;
        let slot = match key {
            "mode" => &mut mode,
            "name" => &mut name,
            "store" => &mut label,
            _ => &mut None,
        };
        if slot.replace(value).is_some() {
            return None; // twice: which one is meant?
        }
        rest = after;
    }
    let mode = match mode?.as_str() {
        "exclusive" => Mode::Exclusive,
        "shared" => Mode::Shared,
        _ => return None,
    };
    Token::from_parts(number, mode, &name?, &label?)
}

/// One `;key=value`, and what comes after it.
fn parameter(text: &str) -> Option<(&str, String, &str)> {
    let text = text.strip_prefix(';')?.trim_start_matches(' ');
    let (key, rest) = text.split_once('=')?;
    if key.is_empty() || !key.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-.*".contains(&b)) {
        return None;
    }
    let Some(quoted) = rest.strip_prefix('"') else {
        let end = rest.find(';').unwrap_or(rest.len());
        let value = rest[..end].trim_end_matches(' ');
        let plain = !value.is_empty() && value.bytes().all(|b| b.is_ascii_graphic() && !b"\"\\,".contains(&b));
        return plain.then(|| (key, value.to_string(), &rest[end..]));
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((key, value, quoted[at + 1..].trim_start_matches(' '))),
            '\\' => value.push(chars.next().map(|(_, c)| c).filter(|c| matches!(c, '"' | '\\'))?),
            ' '..='~' => value.push(c),
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_no_header_is_refused() {
        for garbage in [
            "",
            "33",
            "33;",
            ";mode=exclusive;name=\"a\";store=\"r\"",
            "x;mode=exclusive;name=\"a\";store=\"r\"",
            "-1;mode=exclusive;name=\"a\";store=\"r\"",
            "+1;mode=exclusive;name=\"a\";store=\"r\"",
            "01;mode=exclusive;name=\"a\";store=\"r\"",
            "0;mode=exclusive;name=\"a\";store=\"r\"",
            "1.5;mode=exclusive;name=\"a\";store=\"r\"",
            "9223372036854775808;mode=exclusive;name=\"a\";store=\"r\"",
            "99999999999999999999999;mode=exclusive;name=\"a\";store=\"r\"",
            "33;mode=permits;name=\"a\";store=\"r\"",
            "33;mode=Exclusive;name=\"a\";store=\"r\"",
            "33;mode=exclusive;name=\"a\"",
            "33;mode=exclusive;store=\"r\"",
            "33;name=\"a\";store=\"r\"",
            "33;mode=exclusive;name=\"\";store=\"r\"",
            "33;mode=exclusive;name=\"a b\";store=\"r\"",
            "33;mode=exclusive;name=\"a\";name=\"b\";store=\"r\"",
            "33;mode=exclusive;name=\"a;store=\"r\"",
            "33;mode=exclusive;name=\"a\\n\";store=\"r\"",
            "33;mode=exclusive;name=\"a\"x;store=\"r\"",
            "33;mode=exclusive;name=\"ä\";store=\"r\"",
            "33;mode=exclusive;name=\"a\";store=\"r\", 34;mode=exclusive;name=\"a\";store=\"r\"",
        ] {
            assert_eq!(read(garbage).map_err(|error| error.kind()), Err(ErrorKind::InvalidInput), "{garbage}");
        }
        let long = format!("33;mode=exclusive;name=\"a\";store=\"r\";x={}", "y".repeat(3000));
        assert!(read(&long).is_err());
        let token = read(" 33 ; mode=shared;later=1 ;store=r ; name=\"a\"").unwrap();
        assert_eq!((token.number(), token.mode(), token.name(), token.label()), (33, Mode::Shared, "a", "r"));
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_back(
            number in 1..=i64::MAX as u64,
            exclusive: bool,
            name in "[!-~]{1,200}",
            label in "[!-~]{1,50}",
        ) {
            let mode = if exclusive { Mode::Exclusive } else { Mode::Shared };
            let token = Token::from_parts(number, mode, &name, &label).unwrap();
            prop_assert_eq!(read(&write(&token)).unwrap(), token);
        }

        #[test]
        fn nothing_makes_it_panic(text in "\\PC{0,60}", tail in "[0-9a-z;=\" \\\\]{0,40}") {
            let _ = read(&text);
            let _ = read(&format!("33;{tail}"));
        }
    }
}
