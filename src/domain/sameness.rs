//! Whether two jobs under one id or key are the same job: their types and bodies are.
//!
//! A JSON body is compared by what it says, not by how it is written: object keys in any order, with or without spaces, with any
//! escapes. Numbers are compared as they are written.

use super::job::Body;
use xxhash_rust::xxh3::Xxh3;

/// Of two jobs that are the same it is the same. Not a cryptographic hash: producers of one queue trust each other.
pub type Sameness = [u8; 16];

/// JSON that nests deeper is taken as it is written.
const DEPTH_MAX: usize = 32;

pub fn sameness(job_type: &str, content_type: &str, body: &Body) -> Sameness {
    let kind = match body {
        Body::None => 0,
        Body::Text(_) => 1,
        Body::Data(_) => 2,
    };
    let mut hash = Xxh3::new();
    hash.update(&(job_type.len() as u64).to_be_bytes());
    hash.update(job_type.as_bytes());
    hash.update(&[kind]);
    match body {
        Body::Text(text) if is_json(content_type) => match canonical(text) {
            Some(canonical) => hash.update(&canonical),
            None => hash.update(text),
        },
        _ => hash.update(body.bytes()),
    }
    hash.digest128().to_be_bytes()
}

fn is_json(content_type: &str) -> bool {
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    let suffix = media_type.len().checked_sub("+json".len()).and_then(|at| media_type.get(at..));
    media_type.eq_ignore_ascii_case("application/json")
        || suffix.is_some_and(|suffix| suffix.eq_ignore_ascii_case("+json"))
}

/// The one way to write this JSON. None: it is not JSON, or nests too deeply.
fn canonical(text: &[u8]) -> Option<Vec<u8>> {
    let mut writer = Writer { rest: text, out: Vec::with_capacity(text.len()) };
    writer.value(0)?;
    writer.skip_spaces();
    writer.rest.is_empty().then_some(writer.out)
}

/// Reads JSON and writes it in the one way.
struct Writer<'a> {
    rest: &'a [u8],
    out: Vec<u8>,
}

/// A member of an object in what was written: where it begins, where its key ends, and where its value ends.
struct Member {
    from: usize,
    key_end: usize,
    end: usize,
}

impl Writer<'_> {
    fn next(&mut self) -> Option<u8> {
        let (byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*byte)
    }

    /// Writes so many bytes as they are.
    fn copy(&mut self, length: usize) -> Option<()> {
        let (bytes, rest) = self.rest.split_at_checked(length)?;
        self.out.extend_from_slice(bytes);
        self.rest = rest;
        Some(())
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (*self.rest.first()? == byte).then_some(())?;
        self.copy(1)
    }

    fn skip_spaces(&mut self) {
        while let [b' ' | b'\t' | b'\n' | b'\r', rest @ ..] = self.rest {
            self.rest = rest;
        }
    }

    fn value(&mut self, depth: usize) -> Option<()> {
        self.skip_spaces();
        match self.rest {
            [b'{', ..] if depth < DEPTH_MAX => self.object(depth + 1),
            [b'[', ..] if depth < DEPTH_MAX => self.list(b']', |writer| writer.value(depth + 1)),
            [b'"', ..] => self.string(),
            [b't', b'r', b'u', b'e', ..] | [b'n', b'u', b'l', b'l', ..] => self.copy(4),
            [b'f', b'a', b'l', b's', b'e', ..] => self.copy(5),
            text => self.copy(number(text)?),
        }
    }

    /// An opening bracket, items with commas between them, and this closing bracket.
    fn list(&mut self, close: u8, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.copy(1)?;
        self.skip_spaces();
        if *self.rest.first()? == close {
            return self.copy(1);
        }
        loop {
            item(self)?;
            self.skip_spaces();
            let byte = self.next()?;
            self.out.push(byte);
            if byte != b',' {
                return (byte == close).then_some(());
            }
        }
    }

    /// With its keys in order. A key that is there twice stays so.
    fn object(&mut self, depth: usize) -> Option<()> {
        let base = self.out.len() + 1;
        let mut members: Vec<Member> = Vec::new();
        self.list(b'}', |writer| {
            members.push(writer.member(depth)?);
            Some(())
        })?;
        if !members.is_sorted_by(|a, b| self.out[a.from..a.key_end] <= self.out[b.from..b.key_end]) {
            let written = self.out.split_off(base);
            let part = |from: usize, to: usize| &written[from - base..to - base];
            members.sort_by(|a, b| part(a.from, a.key_end).cmp(part(b.from, b.key_end)));
            for member in &members {
                self.out.extend_from_slice(part(member.from, member.end));
                self.out.push(b',');
            }
            self.out.pop();
            self.out.push(b'}');
        }
        Some(())
    }

    fn member(&mut self, depth: usize) -> Option<Member> {
        self.skip_spaces();
        let from = self.out.len();
        self.string()?;
        let key_end = self.out.len();
        self.skip_spaces();
        self.expect(b':')?;
        self.value(depth)?;
        Some(Member { from, key_end, end: self.out.len() })
    }

    /// With escapes only where there must be some.
    fn string(&mut self) -> Option<()> {
        self.expect(b'"')?;
        loop {
            self.copy(self.rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f))?)?;
            match self.next()? {
                b'"' => break,
                b'\\' => self.escape()?,
                _ => return None,
            }
        }
        self.out.push(b'"');
        Some(())
    }

    fn escape(&mut self) -> Option<()> {
        let character = match self.next()? {
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => self.code_point()?,
            byte @ (b'"' | b'\\' | b'/') => char::from(byte),
            _ => return None,
        };
        match character {
            '"' | '\\' => self.out.extend([b'\\', character as u8]),
            '\0'..='\x1f' => {
                let digit = |value: u8| b"0123456789abcdef"[usize::from(value)];
                self.out.extend(*b"\\u00");
                self.out.extend([digit(character as u8 >> 4), digit(character as u8 & 15)]);
            }
            _ => self.out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
        Some(())
    }

    fn code_point(&mut self) -> Option<char> {
        let high = self.hex()?;
        if !(0xd800..0xdc00).contains(&high) {
            return char::from_u32(high);
        }
        self.rest = self.rest.strip_prefix(b"\\u")?;
        let low = self.hex()?.checked_sub(0xdc00).filter(|low| *low < 0x400)?;
        char::from_u32(0x10000 + ((high - 0xd800) << 10) + low)
    }

    fn hex(&mut self) -> Option<u32> {
        (0..4).try_fold(0, |value, _| Some(value << 4 | char::from(self.next()?).to_digit(16)?))
    }
}

/// How long the number at the beginning is.
fn number(text: &[u8]) -> Option<usize> {
    let digits = |text: &[u8]| text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut end = usize::from(*text.first()? == b'-');
    let whole = digits(&text[end..]);
    if whole == 0 || (whole > 1 && text[end] == b'0') {
        return None;
    }
    end += whole;
    if text.get(end) == Some(&b'.') {
        let fraction = digits(&text[end + 1..]);
        if fraction == 0 {
            return None;
        }
        end += 1 + fraction;
    }
    if let Some(b'e' | b'E') = text.get(end) {
        let sign = usize::from(matches!(text.get(end + 1), Some(b'+' | b'-')));
        let exponent = digits(&text[end + 1 + sign..]);
        if exponent == 0 {
            return None;
        }
        end += 1 + sign + exponent;
    }
    Some(end)
}
