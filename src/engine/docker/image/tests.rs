use super::{ImageBuild, ImageBuilder, MAX_BUILD_ATTEMPTS, split_image_name};
use crate::engine::EngineProgress;
use crate::engine::docker::Docker;
use crate::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

#[test]
fn a_registrys_port_is_no_tag() {
    assert_eq!(
        split_image_name("debian:trixie-slim"),
        ("debian", "trixie-slim")
    );
    assert_eq!(split_image_name("host:5000/x"), ("host:5000/x", "latest"));
    assert_eq!(split_image_name("host:5000/x:1"), ("host:5000/x", "1"));
    assert_eq!(split_image_name("x@sha256:ab"), ("x", "sha256:ab"));
}

struct ImageTestProgress;

impl EngineProgress for ImageTestProgress {
    fn report_step(&self, _what: &str) {}
    fn report_amount(&self, _what: &str, _done: u64, _total: Option<u64>) {}
    fn log(&self, _line: &str) {}
}

/// An engine that cuts the output of `cut` builds in the middle of a message.
async fn engine(listener: UnixListener, cut: usize, builds: Arc<AtomicUsize>) {
    while let Ok((stream, _)) = listener.accept().await {
        let builds = builds.clone();
        tokio::spawn(async move { serve(stream, cut, &builds).await });
    }
}

async fn serve(mut stream: UnixStream, cut: usize, builds: &AtomicUsize) {
    let mut request = Vec::new();
    while !request.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        match stream.read_buf(&mut request).await {
            Ok(read) if read > 0 => {}
            _ => return,
        }
    }
    // A message without its end, and a message within another.
    let cut_answers = [
        "{\"stream\":\"one\"}\n{\"stream\":\"tw",
        "{\"stream\":\"tw{\"stream\":\"three\"}\n",
    ];
    let is_build = request.starts_with(b"POST") && request.windows(6).any(|w| w == b"/build");
    let started = match is_build {
        true => builds.fetch_add(1, Ordering::Relaxed),
        false => 0,
    };
    let answer = match is_build {
        false => r#"{"ApiVersion":"1.41","Os":"linux","Arch":"amd64","Version":"1"}"#,
        true if started < cut => cut_answers[started % 2],
        true => "{\"stream\":\"one\"}\n",
    };
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        answer.len()
    );
    // A client that has disconnected needs no answer.
    let _ = stream.write_all(format!("{head}{answer}").as_bytes()).await;
    let _ = stream.shutdown().await;
}

#[tokio::test]
async fn a_build_with_a_cut_response_is_retried_up_to_the_limit() {
    for cut in 0..=MAX_BUILD_ATTEMPTS {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("engine.sock");
        let builds = Arc::new(AtomicUsize::new(0));
        let listener = UnixListener::bind(&path).unwrap();
        let served = tokio::spawn(engine(listener, cut, builds.clone()));
        let docker = Docker::connect_at_socket(&path).await.unwrap();
        let build = ImageBuild {
            tag: "os:test".into(),
            context: "context".into(),
            args: [].into(),
            labels: [].into(),
            builder: ImageBuilder::BuildKit,
        };
        let built = docker.build_image(&build, &ImageTestProgress).await;
        served.abort();
        assert_eq!(built.is_ok(), cut < MAX_BUILD_ATTEMPTS, "{cut}: {built:?}");
        if let Err(error) = built {
            assert!(matches!(
                error.downcast_ref(),
                Some(Error::EngineLost { .. })
            ));
        }
        let started = (cut + 1).min(MAX_BUILD_ATTEMPTS);
        assert_eq!(builds.load(Ordering::Relaxed), started);
    }
}
