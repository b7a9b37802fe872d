import contextlib
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anyparty.errors import MessageError
from anyparty.transport.codec import DTYPES, Header, decode, encode

HEADER = Header(run="1f0c3a52-7a52-4c43-9a5c-fd5ec6ea1d2e", frm="hospital", to="insurer", tag="embedding", number=41)
SMALL = encode(HEADER, {"h": torch.arange(6, dtype=torch.float32).reshape(2, 3), "seen": torch.tensor([True, False])})

names = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1, max_size=20)
headers = st.builds(Header, run=names, frm=names, to=names, tag=names, number=st.integers(0, 10**17))


@st.composite
def tensors(draw):
    dtype = draw(st.sampled_from(sorted(DTYPES, key=str)))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    numbers = torch.arange(torch.Size(shape).numel()) * draw(st.integers(-3, 3))
    return numbers.to(dtype).reshape(shape)


@given(headers, st.dictionaries(names.filter(lambda name: name != "__metadata__"), tensors(), max_size=4))
def test_decoding_restores_encoded_tensors(header, sent):
    message = decode(encode(header, sent))
    assert message.header == header
    assert message.tensors.keys() == sent.keys()
    for name, tensor in sent.items():
        assert message.tensors[name].dtype == tensor.dtype
        assert torch.equal(message.tensors[name], tensor)


def test_nan_and_signed_zero_are_restored_bit_for_bit():
    sent = torch.tensor([float("nan"), float("-inf"), -0.0])
    got = decode(encode(HEADER, {"x": sent})).tensors["x"]
    assert torch.equal(got.view(torch.int32), sent.view(torch.int32))


def test_views_and_transposed_tensors_are_sent_by_value():
    base = torch.arange(12.0).reshape(3, 4)
    sent = {"all": base, "column": base[:, 1], "turned": base.T, "again": base}
    got = decode(encode(HEADER, sent)).tensors
    assert all(torch.equal(got[name], tensor) for name, tensor in sent.items())


def test_decoded_tensors_are_writable_copies():
    data = encode(HEADER, {"x": torch.zeros(3)})
    decode(data).tensors["x"].add_(1)
    assert torch.equal(decode(data).tensors["x"], torch.zeros(3))


def test_decoded_tensors_do_not_require_gradients():
    x = torch.ones(2, requires_grad=True)
    assert not decode(encode(HEADER, {"x": x * 2})).tensors["x"].requires_grad


def test_overhead_is_at_most_two_percent_of_a_typical_payload():
    payload = torch.randn(128, 64)
    assert len(encode(HEADER, {"embedding": payload})) <= 1.02 * payload.numel() * 4


def test_tensors_are_raw_little_endian_at_the_end():
    assert encode(HEADER, {"x": torch.tensor([1.0, -2.0])}).endswith(bytes.fromhex("0000803f000000c0"))


def test_truncated_bytes_are_refused():
    for length in range(len(SMALL)):
        with pytest.raises(MessageError, match="insurer sent"):
            decode(SMALL[:length], "insurer")


@given(st.binary(min_size=1, max_size=64))
def test_trailing_bytes_are_refused(more):
    with pytest.raises(MessageError, match="nothing"):
        decode(SMALL + more, "insurer")


def test_a_flipped_bit_causes_no_error_other_than_message_error():
    for bit in range(8 * len(SMALL)):
        data = bytearray(SMALL)
        data[bit // 8] ^= 1 << bit % 8
        with contextlib.suppress(MessageError):
            decode(bytes(data))


@settings(max_examples=100)
@given(st.binary(max_size=200))
def test_foreign_bytes_are_refused(data):
    with pytest.raises(MessageError):
        decode(data)


json_values = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                           lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner,
                                                                                       max_size=3))  # fmt: skip
entries = st.fixed_dictionaries({
    "dtype": st.sampled_from(["F32", "BOOL", "F4", "F8_E4M3", "I64", "C64", "X"]),
    "shape": st.lists(st.sampled_from([0, 1, 2, -1, 2**31, 2**62, 2**63, 2**64 - 1]), max_size=3),
    "data_offsets": st.tuples(st.sampled_from([0, 4, 8]), st.sampled_from([0, 4, 8, 2**63])),
})  # fmt: skip


@settings(max_examples=100)
@given(
    st.fixed_dictionaries(
        {}, optional={"__metadata__": json_values | st.just(vars(HEADER) | {"number": "1"}), "a": entries, "b": entries}
    )
    | json_values,
    st.binary(max_size=16),
)
def test_random_headers_cause_no_error_other_than_message_error(header, body):
    text = json.dumps(header).encode()
    with contextlib.suppress(MessageError):
        decode(len(text).to_bytes(8, "little") + text + body)


def frame(text: bytes, body: bytes = b"") -> bytes:
    return len(text).to_bytes(8, "little") + text + body


def about(**changes) -> bytes:
    values = {name: str(value) for name, value in vars(HEADER).items()} | changes
    return frame(json.dumps({"__metadata__": values}).encode())


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "0 bytes, expected one whole message"),
        (frame(b"{}"), "header should hold"),
        (about(extra="x"), "header should hold"),
        (about(number="-1"), "number should be"),
        (about(number="٣"), "number should be"),
        (about(number="9" * 30), "number should be"),
        (about(tag=""), "tag should be 1 to 200"),
        (about(run="x" * 201), "run should be 1 to 200"),
        (about(frm="a\nb"), "frm should be"),
        (frame(b"[" * 50_000), "cut short or foreign"),
        ((1 << 40).to_bytes(8, "little") + b"{}", "a header of 1099511627776 bytes"),
        (b"\x80\x04\x95.............", "not a message of anyparty"),  # a pickle
    ],
)
def test_errors_name_the_sender_the_fault_and_the_expectation(data, said):
    with pytest.raises(MessageError, match=r"^insurer sent") as caught:
        decode(data, "insurer")
    assert said in str(caught.value)


def test_a_boolean_byte_other_than_0_or_1_is_refused():
    with pytest.raises(MessageError, match="only the bytes 0 and 1"):
        decode(encode(HEADER, {"x": torch.tensor([True])})[:-1] + b"\x02")


def test_a_large_message_is_refused_by_sender_and_receiver():
    payload = {"x": torch.zeros(100_000)}
    with pytest.raises(MessageError, match="400000 bytes, the limit is 1000"):
        encode(HEADER, payload, most_bytes=1000)
    with pytest.raises(MessageError, match="the limit is 1000; refused unread"):
        decode(encode(HEADER, payload), "insurer", most_bytes=1000)


def test_complex_tensors_are_refused():
    with pytest.raises(MessageError, match="complex64, which cannot be sent"):
        encode(HEADER, {"x": torch.zeros(2, dtype=torch.complex64)})


@pytest.mark.parametrize("number", [100, 720])
def test_as_many_tensors_as_fit_into_a_header_can_be_sent(number):
    longest = {"run": "r" * 200, "frm": "Ž" * 200, "to": "ž" * 200, "tag": "t" * 200}
    sent = {f"stage/{k}": torch.zeros(1, 1, 1, 1) for k in range(number)}
    assert len(decode(encode(Header(**longest, number=10**18 - 1), sent)).tensors) == number
    with pytest.raises(MessageError, match="send fewer at once"):
        encode(HEADER, {f"stage/{k}": torch.zeros(1) for k in range(960)})
