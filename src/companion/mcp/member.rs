//! A client as a server's owner knows it, and where the answer to a call goes.

use super::filter::Filter;
use super::links::Links;
use super::message::{self, Message, find, splice};
use super::stream::Stream;
use bytes::Bytes;
use std::fmt::Debug;
use std::sync::Arc;

/// Hears what belongs to no call of its own.
pub(super) trait Ears: Debug + Send + Sync {
    /// `is_related`: it may well belong to the call that is open.
    fn hear(&self, text: Bytes, is_related: bool);
}

#[derive(Debug)]
pub(super) struct Member {
    /// Tells clients apart; never 0.
    pub(super) number: u64,
    /// The parameters of its `initialize`; none for those who come without one.
    pub(super) hello: Option<Bytes>,
    pub(super) ears: Arc<dyn Ears>,
}

impl Member {
    /// Whether it can be asked that, such as `sampling`.
    pub(super) fn can(&self, capability: &str) -> bool {
        let hello = self.hello.as_deref().unwrap_or_default();
        let text = std::str::from_utf8(hello).unwrap_or_default();
        find(text, &["capabilities", capability]).is_some()
    }
}

/// Where an answer goes, and in which shape.
#[derive(Debug, Clone)]
pub(super) struct Reply {
    pub(super) stream: Arc<Stream>,
    pub(super) shape: Shape,
}

/// What a client must not see, or must see beside what a server says.
#[derive(Debug, Clone, Default)]
pub(super) struct Shape {
    /// Of a list of tools.
    pub(super) tools: Filter,
    /// The revision without sessions wants more fields than older servers give.
    pub(super) completed: bool,
    /// Of a list: how long it may be kept.
    pub(super) is_list: bool,
    /// The resource that was asked for.
    pub(super) uri: Option<String>,
    /// Where to note the resources that it points to.
    pub(super) links: Option<Arc<Links>>,
}

/// What the revisions call a resource that there is not: up to 2025-11-25, and from 2026-07-28 on.
pub(super) const NO_RESOURCE: i64 = -32002;
const NO_SUCH_PARAMS: i64 = -32602;

impl Reply {
    pub(super) fn plain(stream: Arc<Stream>) -> Self {
        Self {
            stream,
            shape: Shape::default(),
        }
    }

    /// Something on the way to the answer.
    pub(super) fn tell(&self, text: Bytes) {
        self.stream.tell(text);
    }

    pub(super) fn answer(&self, text: Bytes) {
        if let Some(links) = &self.shape.links {
            links.note(&text);
        }
        self.stream.answer(self.shape.of(text));
    }

    pub(super) fn result(&self, id: &str, result: &str) {
        self.answer(message::result(id, result));
    }

    /// There is no such resource.
    pub(super) fn no_resource(&self, id: &str, uri: &str) {
        let error = serde_json::json!({
            "code": NO_RESOURCE,
            "message": format!("no server has the resource `{uri}`"),
            "data": {"uri": uri},
        });
        let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#);
        self.answer(text.into());
    }

    /// Nobody knows what became of it.
    pub(super) fn lost(&self, id: &str) {
        self.stream.answer(message::lost(id));
    }

    pub(super) fn fail(&self, id: &str, code: i64, why: &str) {
        self.stream.answer(message::error(id, code, why));
    }
}

impl Shape {
    fn of(&self, text: Bytes) -> Bytes {
        if self.tools.is_all() && !self.completed {
            return text;
        }
        let Ok(message) = Message::parse(text.clone()) else {
            return text;
        };
        let Some(result) = message.result() else {
            return self.refusal(&message);
        };
        let filtered = self.tools.tools(result);
        let mut result = filtered.as_deref().unwrap_or(result).to_owned();
        if self.completed {
            result = complete(&result, self.is_list);
        }
        let start =
            message.result().map_or(0, |r| r.as_ptr() as usize) - message.text().as_ptr() as usize;
        let end = start + message.result().map_or(0, str::len);
        splice(message.text(), &[(start..end, &result)])
    }
}

impl Shape {
    /// An error as the newest revision has it.
    fn refusal(&self, message: &Message) -> Bytes {
        let text = message.text();
        let whole = std::str::from_utf8(text).unwrap_or_default();
        let code = find(whole, &["error", "code"]);
        let (Some(code), Some(uri)) = (code, self.uri.as_ref().filter(|_| self.completed)) else {
            return text.clone();
        };
        if whole[code.clone()] != NO_RESOURCE.to_string() {
            return text.clone();
        }
        let data = match find(whole, &["error", "data"]) {
            Some(_) => String::new(),
            None => format!(",\"data\":{}", serde_json::json!({"uri": uri})),
        };
        splice(text, &[(code, &format!("{NO_SUCH_PARAMS}{data}"))])
    }
}

/// Adds the fields that every result of the newest revision has, where they are missing.
fn complete(result: &str, is_list: bool) -> String {
    let mut fields = Vec::new();
    let mut need = |name: &str, value: &str| {
        if find(result, &[name]).is_none() {
            fields.push(format!("\"{name}\":{value}"));
        }
    };
    need("resultType", "\"complete\"");
    if is_list {
        need("ttlMs", "0");
        need("cacheScope", "\"private\"");
    }
    let Some(rest) = result.trim_start().strip_prefix('{') else {
        return result.into();
    };
    let is_empty = rest.trim_start().starts_with('}');
    let comma = if is_empty || fields.is_empty() {
        ""
    } else {
        ","
    };
    format!("{{{}{comma}{rest}", fields.join(","))
}

#[cfg(test)]
mod tests {
    use super::{Shape, complete};

    #[test]
    fn missing_fields_are_added_and_others_stay() {
        assert_eq!(complete("{}", false), r#"{"resultType":"complete"}"#);
        let list = r#"{"resultType":"complete","ttlMs":0,"cacheScope":"private","tools":[1.0]}"#;
        assert_eq!(complete(r#"{"tools":[1.0]}"#, true), list);
        assert_eq!(complete(list, true), list);
    }

    #[test]
    fn an_error_has_no_shape() {
        let shape = Shape {
            completed: true,
            ..Shape::default()
        };
        let error = r#"{"id":1,"error":{"code":1,"message":"x"}}"#;
        assert_eq!(shape.of(error.into()), error);
        let asked = Shape {
            uri: Some("a:\"b".into()),
            ..shape.clone()
        };
        let missing = r#"{"id":1,"error":{"code":-32002,"message":"x"}}"#;
        let expected = r#"{"id":1,"error":{"code":-32602,"data":{"uri":"a:\"b"},"message":"x"}}"#;
        assert_eq!(asked.of(missing.into()), expected);
        assert_eq!(asked.of(error.into()), error);
        let older = Shape {
            completed: false,
            ..asked
        };
        assert_eq!(older.of(missing.into()), missing);
        let result = shape.of(r#"{"id":1,"result":{"a":1.0}, "x":2}"#.into());
        let expected = r#"{"id":1,"result":{"resultType":"complete","a":1.0}, "x":2}"#;
        assert_eq!(result, expected);
    }
}
