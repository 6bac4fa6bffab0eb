//! Extractors of the body, the query and the path of a request. An invalid request is refused with an explanation.

use super::refusal::{ApiRefusal, FIELD_DOCS_HINT};
use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

/// Maximum bytes of a request body; streamed bodies have no limit.
pub const MAX_REQUEST_BODY_BYTES: usize = 64 << 20;

/// The texts in which the refusals of the two interfaces differ. The state of an interface selects them.
pub trait ExtractorTexts {
    /// The name of the body in a message.
    const BODY_NAME: &'static str;
    const LARGE_BODY_HINT: Option<&'static str>;
    const INVALID_QUERY_HINT: Option<&'static str>;
}

/// The complete body of a request.
#[derive(Debug)]
pub struct RawBody(pub Bytes);

impl<S: ExtractorTexts + Send + Sync> FromRequest<S> for RawBody {
    type Rejection = ApiRefusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiRefusal> {
        let body = Bytes::from_request(request, state).await;
        body.map(Self)
            .map_err(|rejection| match rejection.status() {
                status @ StatusCode::PAYLOAD_TOO_LARGE => {
                    let (name, limit) = (S::BODY_NAME, MAX_REQUEST_BODY_BYTES >> 20);
                    let message = format!("the {name} is larger than {limit} MiB");
                    ApiRefusal::new(status, "too_large", message)
                        .with_optional_hint(S::LARGE_BODY_HINT)
                }
                status => ApiRefusal::new(status, "unreadable_body", rejection.body_text()),
            })
    }
}

/// A JSON body. An empty body counts as an empty object.
#[derive(Debug)]
pub struct JsonBody<T>(pub T);

impl<T: DeserializeOwned, S: ExtractorTexts + Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiRefusal;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiRefusal> {
        let RawBody(bytes) = RawBody::from_request(request, state).await?;
        let bytes: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        let value = serde_json::from_slice(bytes).map_err(|error| {
            let (kind, fault) = match error.classify() {
                Category::Data => ("invalid_field", "invalid"),
                Category::Syntax | Category::Eof | Category::Io => {
                    ("malformed_json", "not valid JSON")
                }
            };
            let message = format!("the {} is {fault}: {error}", S::BODY_NAME);
            ApiRefusal::new(StatusCode::BAD_REQUEST, kind, message).with_hint(FIELD_DOCS_HINT)
        });
        value.map(Self)
    }
}

/// The parameters of the query.
#[derive(Debug)]
pub struct QueryParams<T>(pub T);

impl<T: DeserializeOwned, S: ExtractorTexts + Send + Sync> FromRequestParts<S> for QueryParams<T> {
    type Rejection = ApiRefusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiRefusal> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query.map(|Query(value)| Self(value)).map_err(|rejection| {
            let message = rejection.body_text();
            ApiRefusal::new(StatusCode::BAD_REQUEST, "invalid_query", message)
                .with_optional_hint(S::INVALID_QUERY_HINT)
        })
    }
}

/// The ID or the name in the path.
#[derive(Debug)]
pub struct PathId(pub String);

impl<S: Send + Sync> FromRequestParts<S> for PathId {
    type Rejection = ApiRefusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiRefusal> {
        let path = Path::<String>::from_request_parts(parts, state).await;
        path.map(|Path(id)| Self(id)).map_err(|rejection| {
            let message = rejection.body_text();
            ApiRefusal::new(StatusCode::BAD_REQUEST, "invalid_path", message)
                .with_hint("an ID consists of letters, digits, `-`, `_` and `.`")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{
        ApiRefusal, ExtractorTexts, JsonBody, MAX_REQUEST_BODY_BYTES, QueryParams, RawBody,
    };
    use axum::body::Body;
    use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Request};
    use serde::Deserialize;

    struct Api;
    struct Hub;

    impl ExtractorTexts for Api {
        const BODY_NAME: &'static str = "request body";
        const LARGE_BODY_HINT: Option<&'static str> = Some("HINT");
        const INVALID_QUERY_HINT: Option<&'static str> = Some("HINT");
    }

    impl ExtractorTexts for Hub {
        const BODY_NAME: &'static str = "body";
        const LARGE_BODY_HINT: Option<&'static str> = None;
        const INVALID_QUERY_HINT: Option<&'static str> = None;
    }

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(deny_unknown_fields)]
    struct Fields {
        #[serde(default)]
        count: u8,
    }

    /// Status, type word, message and hint.
    fn parts(refusal: ApiRefusal) -> (u16, String, String, Option<String>) {
        let (status, error) = refusal.into_parts();
        (status.as_u16(), error.kind, error.message, error.hint)
    }

    async fn parse_body(body: &'static str) -> Result<Fields, ApiRefusal> {
        let parsed = JsonBody::from_request(Request::new(Body::from(body)), &Api).await;
        parsed.map(|JsonBody(fields)| fields)
    }

    #[tokio::test]
    async fn a_body_is_an_object_or_refused_by_the_kind_of_its_fault() {
        assert_eq!(parse_body("").await.unwrap(), Fields { count: 0 });
        assert_eq!(
            parse_body(r#"{"count":7}"#).await.unwrap(),
            Fields { count: 7 }
        );
        let hint = Some(super::FIELD_DOCS_HINT.to_owned());
        let (status, kind, message, found) = parts(parse_body(r#"{"other":1}"#).await.unwrap_err());
        assert_eq!(
            (status, kind.as_str(), &found),
            (400, "invalid_field", &hint)
        );
        assert!(message.starts_with("the request body is invalid: unknown field `other`"));
        let (status, kind, message, found) = parts(parse_body("{").await.unwrap_err());
        assert_eq!(
            (status, kind.as_str(), &found),
            (400, "malformed_json", &hint)
        );
        assert!(message.starts_with("the request body is not valid JSON: EOF"));
    }

    #[tokio::test]
    async fn each_interface_refuses_a_large_body_and_an_invalid_query_with_its_texts() {
        let large = || {
            let mut request = Request::new(Body::from(vec![0; MAX_REQUEST_BODY_BYTES + 1]));
            DefaultBodyLimit::max(MAX_REQUEST_BODY_BYTES).apply(&mut request);
            request
        };
        let refused = |text: &str, hint: Option<&str>| {
            let kind = "too_large".to_owned();
            (413, kind, text.to_owned(), hint.map(str::to_owned))
        };
        let found = RawBody::from_request(large(), &Api).await.unwrap_err();
        let text = "the request body is larger than 64 MiB";
        assert_eq!(parts(found), refused(text, Some("HINT")));
        let found = RawBody::from_request(large(), &Hub).await.unwrap_err();
        assert_eq!(
            parts(found),
            refused("the body is larger than 64 MiB", None)
        );
        let request = || {
            Request::builder()
                .uri("/?count=many")
                .body(Body::empty())
                .unwrap()
        };
        let (mut parts_of_api, mut parts_of_hub) =
            (request().into_parts().0, request().into_parts().0);
        let found = QueryParams::<Fields>::from_request_parts(&mut parts_of_api, &Api).await;
        let (status, kind, _, hint) = parts(found.unwrap_err());
        assert_eq!(
            (status, kind.as_str(), hint.as_deref()),
            (400, "invalid_query", Some("HINT"))
        );
        let found = QueryParams::<Fields>::from_request_parts(&mut parts_of_hub, &Hub).await;
        assert_eq!(parts(found.unwrap_err()).3, None);
    }
}
