use redrive::domain::{Body, Sameness, sameness};

const JSON: &str = "application/json";

fn of(content_type: &str, body: &str) -> Sameness {
    sameness("mail", content_type, &Body::Text(body.to_owned().into()))
}

/// The same as that of the bytes as they are.
fn as_it_is(body: &str) -> Sameness {
    of("text/plain", body)
}

#[test]
fn json_is_compared_as_if_written_in_one_way() {
    for (text, expected) in [
        (" { } ", "{}"),
        ("[ ]", "[]"),
        ("[1 , 2.50,-0,1E+5]", "[1,2.50,-0,1E+5]"),
        (r#"{"b":1, "a" :{"d":[true,false,null],"c":""}}"#, r#"{"a":{"c":"","d":[true,false,null]},"b":1}"#),
        (r#""\u0041\/\u00e9\ud83d\ude00\n\"\\""#, r#""A/é😀\u000a\"\\""#),
        (r#"{"a":2,"\u0061":1,"Z":0}"#, r#"{"Z":0,"a":2,"a":1}"#),
    ] {
        assert_eq!(of(JSON, text), as_it_is(expected), "{text}");
        assert_eq!(of(JSON, expected), as_it_is(expected), "{expected} stays as it is");
    }
}

#[test]
fn what_is_not_json_or_nests_deeply_is_taken_as_it_is() {
    for text in [
        "",
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
        // A space that would go if it were JSON.
        let text = format!(" {text}");
        assert_eq!(of(JSON, &text), as_it_is(&text), "{text}");
    }
    let nested = |depth| format!(" {}{}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(of(JSON, &nested(32)), as_it_is(nested(32).trim()));
    assert_eq!(of(JSON, &nested(33)), as_it_is(&nested(33)));
}

#[test]
fn two_ways_to_write_one_json_body_are_one_job() {
    let (a, b) = (r#"{"a":1,"b":"é"}"#, "{ \"b\" : \"\\u00e9\", \"a\" : 1 }");
    for json in [JSON, "Application/JSON; charset=utf-8", "application/vnd.x+json"] {
        assert_eq!(of(json, a), of(json, b), "{json}");
    }
    for other in ["text/plain", "", "application/jsonp", "json", "é+jso"] {
        assert_ne!(of(other, a), of(other, b), "{other}");
    }
    assert_ne!(of(JSON, "1"), of(JSON, "1.0"));
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
