//! The contract explains itself: reflection in both versions, and a comment on everything.

use crate::server::Server;
use prost::Message;
use prost_types::{DescriptorProto, FileDescriptorProto, FileDescriptorSet};
use std::collections::HashSet;

macro_rules! services {
    ($server:expr, $version:ident) => {{
        use tonic_reflection::pb::$version::ServerReflectionRequest;
        use tonic_reflection::pb::$version::server_reflection_client::ServerReflectionClient;
        use tonic_reflection::pb::$version::server_reflection_request::MessageRequest;
        use tonic_reflection::pb::$version::server_reflection_response::MessageResponse;
        let request = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::ListServices(String::new())),
        };
        let mut replies = ServerReflectionClient::new($server.channel.clone())
            .server_reflection_info(tokio_stream::once(request))
            .await
            .unwrap()
            .into_inner();
        match replies.message().await.unwrap().unwrap().message_response {
            Some(MessageResponse::ListServicesResponse(list)) => {
                let names = list.service.into_iter().map(|service| service.name);
                names.collect::<Vec<_>>()
            }
            other => panic!("{other:?}"),
        }
    }};
}

#[tokio::test]
async fn both_versions_of_reflection_list_the_services() {
    let server = Server::start().await;
    for listed in [services!(server, v1), services!(server, v1alpha)] {
        for service in ["redrive.v1.QueueService", "redrive.v1.AdminService", "grpc.health.v1.Health"] {
            assert!(listed.iter().any(|name| name == service), "{service}: {listed:?}");
        }
    }
}

#[tokio::test]
async fn health_is_told_for_every_service() {
    use tonic_health::{pb::HealthCheckRequest, pb::health_client::HealthClient};
    let server = Server::start().await;
    for service in ["", "redrive.v1.QueueService", "redrive.v1.AdminService"] {
        let request = HealthCheckRequest { service: service.into() };
        let mut watched = HealthClient::new(server.channel.clone()).watch(request).await.unwrap().into_inner();
        // The first answer may come before the first look at the store.
        while watched.message().await.unwrap().expect("health is told").status != 1 {}
    }
}

#[test]
fn everything_in_the_contract_has_a_comment() {
    let contract = FileDescriptorSet::decode(redrive::grpc::FILE_DESCRIPTOR_SET).unwrap();
    let ours = contract.file.iter().filter(|file| file.package() == "redrive.v1");
    let mut walked = Vec::new();
    let mut bare = Vec::new();
    for file in ours {
        let commented = commented(file);
        for (path, name) in everything(file) {
            if !commented.contains(path.as_slice()) {
                bare.push(name.clone());
            }
            walked.push(name);
        }
    }
    assert!(bare.is_empty(), "without a comment: {bare:#?}");
    assert!(walked.len() > 300, "only {} found", walked.len());
}

fn commented(file: &FileDescriptorProto) -> HashSet<&[i32]> {
    let info = file.source_code_info.as_ref().expect("the comments are served");
    let told = info.location.iter().filter(|location| {
        !location.leading_comments().trim().is_empty() || !location.trailing_comments().trim().is_empty()
    });
    told.map(|location| location.path.as_slice()).collect()
}

/// Services, calls, messages, fields, choices, enums and their values, each with its path in the descriptor.
fn everything(file: &FileDescriptorProto) -> Vec<(Vec<i32>, String)> {
    let mut all = Vec::new();
    for (at, service) in (0..).zip(&file.service) {
        all.push((vec![6, at], service.name().to_owned()));
        for (call_at, call) in (0..).zip(&service.method) {
            all.push((vec![6, at, 2, call_at], format!("{}.{}", service.name(), call.name())));
        }
    }
    for (at, message) in (0..).zip(&file.message_type) {
        walk_message(vec![4, at], message, &mut all);
    }
    for (at, choice) in (0..).zip(&file.enum_type) {
        all.push((vec![5, at], choice.name().to_owned()));
        for (value_at, value) in (0..).zip(&choice.value) {
            all.push((vec![5, at, 2, value_at], value.name().to_owned()));
        }
    }
    all
}

fn walk_message(path: Vec<i32>, message: &DescriptorProto, all: &mut Vec<(Vec<i32>, String)>) {
    let under = |kind, at| [path.as_slice(), &[kind, at]].concat();
    for (at, field) in (0..).zip(&message.field) {
        all.push((under(2, at), format!("{}.{}", message.name(), field.name())));
    }
    for (at, choice) in (0..).zip(&message.oneof_decl) {
        // Of those that the compiler makes for optional fields there is nothing to tell.
        if !choice.name().starts_with('_') {
            all.push((under(8, at), format!("{}.{}", message.name(), choice.name())));
        }
    }
    for (at, nested) in (0..).zip(&message.nested_type) {
        let of_a_map = nested.options.as_ref().is_some_and(|options| options.map_entry());
        if !of_a_map {
            walk_message(under(3, at), nested, all);
        }
    }
    all.push((path, message.name().to_owned()));
}
