//! The codec of the contract: prost's, except that a request that would take too much memory is refused before it is decoded. Two
//! bytes on the wire can be a job of several hundred.

use super::{FILE_DESCRIPTOR_SET, status};
use bytes::Buf;
use prost::encoding::{WireType, decode_key, decode_varint};
use prost::{Message, Name};
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::LazyLock;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec as CodecOf, DecodeBuf, Decoder as DecoderOf};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// What a request may take of memory once it is decoded, about. A body of 1 MiB that is a list of small numbers takes 25.
const DECODED_MAX: usize = 32 << 20;
/// Shorter ones cannot take much.
const SHORT: usize = 8 << 10;
/// As prost has it: what is nested deeper is not read.
const DEPTH_MAX: usize = 100;

/// What a field takes in its message.
const TEXT_BYTES: usize = 32;
const LIST_BYTES: usize = 32;
const NUMBER_BYTES: usize = 16;

#[derive(Debug)]
pub(crate) struct Codec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> CodecOf for Codec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Name + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = Decoder<U>;

    fn encoder(&mut self) -> ProstEncoder<T> {
        ProstCodec::<T, U>::default().encoder()
    }

    fn decoder(&mut self) -> Decoder<U> {
        Decoder(ProstCodec::<T, U>::default().decoder())
    }
}

#[derive(Debug)]
pub(crate) struct Decoder<U>(ProstDecoder<U>);

impl<U: Message + Name + Default> DecoderOf for Decoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // Replies come from the server, which a client trusts.
        if buf.remaining() > SHORT && U::NAME.ends_with("Request") {
            // A message is in one piece.
            SHAPES.check(&U::full_name(), buf.chunk())?;
        }
        self.0.decode(buf)
    }

    fn buffer_settings(&self) -> BufferSettings {
        self.0.buffer_settings()
    }
}

static SHAPES: LazyLock<Shapes> = LazyLock::new(|| {
    // It comes from our own build.
    Shapes::of(&FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap_or_default())
});

/// All messages of the contract.
#[derive(Default)]
struct Shapes {
    by_name: HashMap<String, usize>,
    shapes: Vec<Shape>,
}

/// What is known of a message.
struct Shape {
    /// About what one takes, without what its lists and texts hold.
    bytes: usize,
    /// By number, the shapes of fields that are messages.
    messages: Vec<Option<usize>>,
}

/// It takes more than `DECODED_MAX`.
struct TooMuch;

impl Shapes {
    fn of(files: &FileDescriptorSet) -> Self {
        let mut described = HashMap::new();
        for file in &files.file {
            file.message_type.iter().for_each(|message| describe(file.package(), message, &mut described));
        }
        let names = described.keys().enumerate();
        let by_name: HashMap<String, usize> = names.map(|(at, name)| (name.clone(), at)).collect();
        let shape = |message: &DescriptorProto| {
            let most = message.field.iter().map(|field| field.number() as usize).max();
            let mut messages = vec![None; most.map_or(0, |most| most + 1)];
            for field in message.field.iter().filter(|field| field.r#type() == Type::Message) {
                messages[field.number() as usize] = by_name.get(message_name(field)).copied();
            }
            Shape { bytes: size(message, &described), messages }
        };
        let shapes = described.values().map(|message| shape(message)).collect();
        Self { by_name, shapes }
    }

    /// Refuses what would take too much.
    fn check(&self, name: &str, bytes: &[u8]) -> Result<(), Status> {
        let Some(at) = self.by_name.get(name) else { return Ok(()) };
        self.add(*at, bytes, &mut 0, DEPTH_MAX).map_err(|TooMuch| status::takes_too_much(DECODED_MAX >> 20))
    }

    /// Adds what a message takes to `all`. What cannot be read ends it: it will not be decoded, either.
    fn add(&self, at: usize, mut bytes: &[u8], all: &mut usize, depth: usize) -> Result<(), TooMuch> {
        let Some(deeper) = depth.checked_sub(1) else { return Ok(()) };
        let shape = &self.shapes[at];
        *all += shape.bytes;
        while let Ok((field, wire)) = decode_key(&mut bytes) {
            let length = match wire {
                WireType::ThirtyTwoBit => 4,
                WireType::SixtyFourBit => 8,
                WireType::Varint => decode_varint(&mut bytes).map_or(usize::MAX, |_| 0),
                WireType::LengthDelimited => decode_varint(&mut bytes).map_or(usize::MAX, |length| length as usize),
                // What is in a group counts as if it stood here.
                WireType::StartGroup | WireType::EndGroup => 0,
            };
            let Some((value, rest)) = bytes.split_at_checked(length) else { return Ok(()) };
            bytes = rest;
            if wire == WireType::LengthDelimited {
                match shape.messages.get(field as usize) {
                    Some(&Some(message)) => self.add(message, value, all, deeper)?,
                    _ => *all += TEXT_BYTES + value.len(),
                }
            }
            if *all > DECODED_MAX {
                return Err(TooMuch);
            }
        }
        Ok(())
    }
}

fn describe<'d>(within: &str, message: &'d DescriptorProto, all: &mut HashMap<String, &'d DescriptorProto>) {
    let name = format!("{within}.{}", message.name());
    message.nested_type.iter().for_each(|nested| describe(&name, nested, all));
    all.insert(name, message);
}

fn message_name(field: &FieldDescriptorProto) -> &str {
    field.type_name().trim_start_matches('.')
}

/// Messages that are not in lists stand in those that hold them; what is in itself is so through a list. Of a `oneof` there is one.
fn size(message: &DescriptorProto, described: &HashMap<String, &DescriptorProto>) -> usize {
    let mut one_of = vec![0; message.oneof_decl.len()];
    let mut all = 0;
    for field in &message.field {
        let bytes = match field.r#type() {
            _ if field.label() == Label::Repeated => LIST_BYTES,
            Type::Message => described.get(message_name(field)).map_or(0, |inner| size(inner, described)) + 8,
            Type::String | Type::Bytes => TEXT_BYTES,
            _ => NUMBER_BYTES,
        };
        match field.oneof_index {
            Some(at) => one_of[at as usize] = bytes.max(one_of[at as usize]),
            None => all += bytes,
        }
    }
    all + one_of.iter().sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::pb;

    #[test]
    fn no_message_takes_more_than_is_reckoned_with() {
        let reckoned = |name: &str| SHAPES.shapes[SHAPES.by_name[name]].bytes;
        for (name, takes) in [
            ("redrive.v1.EnqueueRequest", size_of::<pb::EnqueueRequest>()),
            ("redrive.v1.EnqueueRequest.HeadersEntry", 2 * size_of::<String>()),
            ("redrive.v1.AckRequest", size_of::<pb::AckRequest>()),
            ("redrive.v1.NackRequest", size_of::<pb::NackRequest>()),
            ("redrive.v1.ExtendRequest", size_of::<pb::ExtendRequest>()),
            ("google.protobuf.Value", size_of::<prost_types::Value>()),
        ] {
            let reckoned = reckoned(name);
            assert!((takes..=2 * takes).contains(&reckoned), "{name}: {takes}, reckoned with {reckoned}");
        }
    }
}
