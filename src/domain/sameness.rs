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
    let mut writer = Writer { text, at: 0, out: Vec::with_capacity(text.len()) };
    writer.value(0)?;
    writer.skip_spaces();
    (writer.at == text.len()).then_some(writer.out)
}

/// Reads JSON and writes it in the one way.
struct Writer<'a> {
    text: &'a [u8],
    at: usize,
    out: Vec<u8>,
}

/// A member of an object in what was written: where it begins, where its key ends, and where its value ends.
struct Written {
    from: usize,
    key_end: usize,
    end: usize,
}

impl Writer<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then_some(())
    }

    fn skip_spaces(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn value(&mut self, depth: usize) -> Option<()> {
        self.skip_spaces();
        match self.peek()? {
            b'{' if depth < DEPTH_MAX => self.object(depth + 1),
            b'[' if depth < DEPTH_MAX => self.array(depth + 1),
            b'"' => self.string(),
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            _ => self.number(),
        }
    }

    fn word(&mut self, word: &[u8]) -> Option<()> {
        let rest = self.text[self.at..].strip_prefix(word)?;
        self.at = self.text.len() - rest.len();
        self.out.extend_from_slice(word);
        Some(())
    }

    fn number(&mut self) -> Option<()> {
        let from = self.at;
        if self.peek()? == b'-' {
            self.at += 1;
        }
        match self.next()? {
            b'0' => {}
            b'1'..=b'9' => self.skip_digits(),
            _ => return None,
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        self.out.extend_from_slice(&self.text[from..self.at]);
        Some(())
    }

    fn digits(&mut self) -> Option<()> {
        self.next()?.is_ascii_digit().then_some(())?;
        self.skip_digits();
        Some(())
    }

    fn skip_digits(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
    }

    fn array(&mut self, depth: usize) -> Option<()> {
        self.expect(b'[')?;
        self.out.push(b'[');
        self.skip_spaces();
        if self.peek()? == b']' {
            self.at += 1;
            self.out.push(b']');
            return Some(());
        }
        loop {
            self.value(depth)?;
            self.skip_spaces();
            let byte = self.next()?;
            self.out.push(byte);
            match byte {
                b',' => {}
                b']' => return Some(()),
                _ => return None,
            }
        }
    }

    /// With its keys in order. A key that is there twice stays so.
    fn object(&mut self, depth: usize) -> Option<()> {
        self.expect(b'{')?;
        self.out.push(b'{');
        let from = self.out.len();
        let mut members: Vec<Written> = Vec::new();
        let mut sorted = true;
        self.skip_spaces();
        if self.peek()? == b'}' {
            self.at += 1;
            self.out.push(b'}');
            return Some(());
        }
        loop {
            self.skip_spaces();
            let member = self.member(depth)?;
            if let Some(last) = members.last() {
                sorted &=
                    self.out[last.from..last.key_end] <= self.out[member.from..member.key_end];
            }
            members.push(member);
            self.skip_spaces();
            match self.next()? {
                b',' => self.out.push(b','),
                b'}' => break,
                _ => return None,
            }
        }
        if !sorted {
            let written = self.out.split_off(from);
            let part = |from: usize, to: usize, base: usize| &written[from - base..to - base];
            members
                .sort_by(|a, b| part(a.from, a.key_end, from).cmp(part(b.from, b.key_end, from)));
            for (at, member) in members.iter().enumerate() {
                if at > 0 {
                    self.out.push(b',');
                }
                self.out.extend_from_slice(part(member.from, member.end, from));
            }
        }
        self.out.push(b'}');
        Some(())
    }

    fn member(&mut self, depth: usize) -> Option<Written> {
        let from = self.out.len();
        self.string()?;
        let key_end = self.out.len();
        self.skip_spaces();
        self.expect(b':')?;
        self.out.push(b':');
        self.value(depth)?;
        Some(Written { from, key_end, end: self.out.len() })
    }

    /// With escapes only where there must be some.
    fn string(&mut self) -> Option<()> {
        self.expect(b'"')?;
        self.out.push(b'"');
        loop {
            let from = self.at;
            while !matches!(self.peek()?, b'"' | b'\\' | 0..=0x1f) {
                self.at += 1;
            }
            self.out.extend_from_slice(&self.text[from..self.at]);
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
                let code = character as u8;
                let digit = |value: u8| b"0123456789abcdef"[usize::from(value)];
                self.out.extend([b'\\', b'u', b'0', b'0', digit(code >> 4), digit(code & 15)]);
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
        self.expect(b'\\')?;
        self.expect(b'u')?;
        let low = self.hex()?.checked_sub(0xdc00).filter(|low| *low < 0x400)?;
        char::from_u32(0x10000 + ((high - 0xd800) << 10) + low)
    }

    fn hex(&mut self) -> Option<u32> {
        let mut value = 0;
        for _ in 0..4 {
            value = value << 4 | char::from(self.next()?).to_digit(16)?;
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> Option<String> {
        canonical(text.as_bytes()).map(|out| String::from_utf8(out).unwrap())
    }

    fn of(content_type: &str, body: &str) -> Sameness {
        sameness("mail", content_type, &Body::Text(body.to_owned().into()))
    }

    #[test]
    fn json_is_written_in_one_way() {
        for (text, expected) in [
            (" { } ", "{}"),
            ("[ ]", "[]"),
            ("[1 , 2.50,-0,1E+5]", "[1,2.50,-0,1E+5]"),
            (
                r#"{"b":1, "a" :{"d":[true,false,null],"c":""}}"#,
                r#"{"a":{"c":"","d":[true,false,null]},"b":1}"#,
            ),
            (r#""\u0041\/\u00e9\ud83d\ude00\n\"\\""#, r#""A/é😀\u000a\"\\""#),
            (r#"{"a":2,"\u0061":1,"Z":0}"#, r#"{"Z":0,"a":2,"a":1}"#),
        ] {
            assert_eq!(written(text).as_deref(), Some(expected), "{text}");
            assert_eq!(written(expected).as_deref(), Some(expected), "it stays as it is");
        }
    }

    #[test]
    fn what_is_not_json_or_nests_deeply_is_taken_as_it_is() {
        for text in [
            "",
            " ",
            "{",
            "[1,]",
            "{,}",
            r#"{"a":1,}"#,
            r#"{"a"}"#,
            "{a:1}",
            "01",
            "1.",
            "+1",
            ".5",
            "1e",
            "nul",
            "[1 2]",
            "\"\n\"",
            r#""\x""#,
            r#""\ud800""#,
            r#""\ud800\u0041""#,
            r#""\u12""#,
            "1 1",
            "\"",
            "-",
        ] {
            assert_eq!(written(text), None, "{text}");
        }
        let nested = |depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(written(&nested(32)).is_some() && written(&nested(33)).is_none());
        assert_ne!(of("application/json", "{ nonsense"), of("application/json", "{nonsense"));
    }

    #[test]
    fn two_ways_to_write_one_json_body_are_one_job() {
        let (a, b) = (r#"{"a":1,"b":"é"}"#, "{ \"b\" : \"\\u00e9\", \"a\" : 1 }");
        for json in
            ["application/json", "Application/JSON; charset=utf-8", "application/vnd.x+json"]
        {
            assert_eq!(of(json, a), of(json, b), "{json}");
        }
        for other in ["text/plain", "", "application/jsonp", "json", "é+jso"] {
            assert_ne!(of(other, a), of(other, b), "{other}");
        }
        assert_ne!(of("application/json", "1"), of("application/json", "1.0"));
    }

    #[test]
    fn type_and_kind_of_body_count() {
        let body = || "body".to_owned().into();
        let same = sameness("mail", "", &Body::Text(body()));
        assert_ne!(same, sameness("mail", "", &Body::Data(body())));
        assert_ne!(same, sameness("sms", "", &Body::Text(body())));
        assert_ne!(sameness("a", "", &Body::None), sameness("a", "", &Body::Data("".into())));
        assert_eq!(same, sameness("mail", "text/plain", &Body::Text(body())));
    }
}
