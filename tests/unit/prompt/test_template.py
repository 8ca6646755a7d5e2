"""Chat templates render as Hugging Face renders them, and fail in one line."""

from __future__ import annotations

import datetime as dt
import json
import threading

import jinja2.sandbox
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgellm.core import Message
from edgellm.errors import TemplateError
from edgellm.prompt.template import (
    MAX_SOURCE_CHARS,
    ChatTemplate,
    RawTemplate,
    make_prompter,
    opens_answers,
)

NOW = dt.datetime(2026, 5, 17, 9, 30, 12)  # noqa: DTZ001
CONVERSATION = [
    Message("system", "Be brief."),
    Message("user", "What is 1 < 2 & 값?\n"),
    Message("assistant", "<think>easy</think>\n\nTrue."),
    Message("user", "And 3?"),
]
# What templates of real models do, each in one line or two.
USUAL = {
    "split": "{% for m in messages %}{{ m.content.split('</think>')[-1].lstrip('\n') }}|{% endfor %}",
    "namespace": (
        "{% set ns = namespace(last=-1) %}{% for m in messages[::-1] %}"
        "{% if ns.last < 0 and m['role'] == 'user' %}"
        "{% set ns.last = messages|length - 1 - loop.index0 %}{% endif %}{% endfor %}{{ ns.last }}"
    ),
    "macro": (
        "{%- macro turn(m, n=1) -%}[{{ m.role }}] {{ m.content|trim }}{{ caller() }}{%- endmacro %}"
        "{% for m in messages %}{% call turn(m) %}!{% endcall %}{% endfor %}"
    ),
    "filters": (
        "{{ messages|map(attribute='role')|unique|join(', ') }} {{ messages|selectattr('role', "
        "'equalto', 'user')|list|length }} {{ (messages|last).content|upper|replace('A', 'b') }} "
        "{{ 2.5|round|int }} {{ x|default('d') }} {{ [3,1,2]|sort|first }} {{ 'abc'|reverse }} "
        "{{ 'a b'|title }} {{ '%s-%03d'|format('x', 7) }} {{ 'a\nb'|indent(2) }} {{ 'ab'|center(8) }}"
    ),
    "tests": (
        "{{ tools is none }} {{ nothing is defined }} {{ messages is iterable and messages is not "
        "string }} {{ 'x' is string }} {{ messages[0].role is eq 'system' }} {{ 3 is odd }}"
    ),
    "operators": (
        "{{ 'a' ~ 1 ~ none }} {{ 'ab' * 2 }} {{ 7 // 2 }} {{ 2 ** 5 }} {{ 7 % 4 }} {{ '%s!' % 'x' }} "
        "{{ [1] + [2, 3] }} {{ 'B' in 'ABC' }} {{ 1 < 2 <= 2 }} {{ {'a': (1, 2)} }} {{ 1.5 * 2 }} "
        "{{ 'y' if false else 'n' }} {{ not true }} {{ -3 }} {{ [1, 2, 3][1:] }} {{ 'abc'[::-1] }}"
    ),
    "methods": (
        "{{ messages[0].get('role') }} {{ messages[0].items()|list }} {{ 'a-b'.split('-') }} "
        "{{ 'x'.join(['1', '2']) }} {{ 'Abc'.startswith('A') }} {{ '{} {n:>4}'.format(1, n='é') }} "
        "{{ 'abc'.replace('b', 'xx') }} {{ 'a'.ljust(4) }}| {{ dict(a=1) }} {{ 'ab'.count('a') }}"
    ),
    "loop": (
        "{% for m in messages if m.role != 'system' %}{{ loop.index }}/{{ loop.length }}"
        "{{ loop.first }}{{ loop.last }}{{ loop.previtem.role if not loop.first }}{{ loop.cycle('a', 'b') }}"
        "{% if loop.index == 2 %}{% continue %}{% endif %}{{ m.role }}{% else %}none{% endfor %}"
    ),
    "blocks": (
        "{% set text %}a{{ 1 }}b{% endset %}{% filter upper %}{{ text }}{% endfilter %}"
        "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %}"
        "{% with y = 5 %}{{ y }}{% endwith %}{% raw %}{{ x }}{% endraw %}{# comment #}"
    ),
    "space": "  {% if true %}\n  a\n  {%- endif %}\n\n{{ bos_token }}{{ eos_token }}\n",
    "escape": "{{ '<&>'|e }} {{ ('<b>'|safe) + '<' }} {{ 'x'|e ~ '<' }}",
    "tojson": "{{ messages|tojson }}{{ {'b': '<값>', 'a': [1, none]}|tojson(indent=2) }}",
}


def reference(source, messages, **values: object):
    """Render as `apply_chat_template` does: its environment, its variables."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(
        value, ensure_ascii=False, indent=indent
    )
    plain = [{"role": m.role, "content": m.content} for m in messages]
    template = environment.from_string(source)
    return template.render(messages=plain, tools=None, documents=None, **values)


def render(source, messages=CONVERSATION, **options: bool):
    return ChatTemplate(source, bos_text="<s>", eos_text="</s>").render(
        messages, now=NOW, **options
    )


@pytest.mark.parametrize("name", USUAL)
def test_renders_what_hugging_face_renders(name):
    """Counting every step changes no result."""
    expected = reference(USUAL[name], CONVERSATION, bos_token="<s>", eos_token="</s>")
    assert expected == render(USUAL[name])


@given(st.lists(st.text(max_size=30), min_size=1, max_size=6))
def test_renders_any_content_as_it_is(contents):
    """Nothing is escaped, trimmed or normalised behind the template's back."""
    messages = [Message("user", content) for content in contents]
    source = "{% for m in messages %}{{ '<' + m.content ~ '>' }}{{ m['content'] }}{% endfor %}"
    assert "".join(f"<{c}>{c}" for c in contents) == render(source, messages)


def test_the_generation_tag_is_only_a_scope():
    """`{% generation %}` marks words for training and changes nothing here."""
    source = "{% for m in messages %}{% generation %}{{ m.role }};{% endgeneration %}{% endfor %}"
    assert "system;user;assistant;user;" == render(source)


def test_strftime_now_reads_the_given_clock():
    """A render is a pure function of its arguments."""
    assert "17 May 2026 09:30:12 %" == render("{{ strftime_now('%d %b %Y %H:%M:%S %%') }}")


def test_without_a_given_clock_it_is_the_local_time():
    """The year is this one."""
    template = ChatTemplate("{{ strftime_now('%Y') }}", bos_text="", eos_text="")
    years = {str(dt.datetime.now().astimezone().year) for _ in range(2)}
    assert template.render(CONVERSATION) in years


def test_add_generation_prompt_reaches_the_template():
    """It is on unless turned off."""
    source = "{% if add_generation_prompt %}go{% endif %}"
    assert ["go", ""] == [render(source), render(source, add_generation_prompt=False)]


def test_a_template_that_refuses_speaks_in_its_own_words():
    """With its line, and without advice to replace it."""
    with pytest.raises(TemplateError) as caught:
        render("\n\n{{ raise_exception('roles must\nalternate') }}")
    assert "chat template, line 3: roles must alternate" == str(caught.value)


@pytest.mark.parametrize(
    ("source", "line", "words"),
    [
        ("a\n{% for m in messages %}", 2, "Unexpected end of template"),
        ("a\nb\n{{ messages | shout }}", 3, "No filter named 'shout'"),
        ("{{ messages is strange }}", 1, "No test named 'strange'"),
        ("\n{{ nothing.at.all }}", 2, "'nothing' is undefined"),
        ("\n{% if true %}\n{{ 1 / 0 }}{% endif %}", 3, "division by zero"),
        ("{{ 'a' + 1 }}", 1, "can only concatenate"),
        ("{{ messages['x'].y }}", 1, "no attribute 'x'"),
        ("{% include '/etc/passwd' %}", 1, "not allowed"),
        ("{% import 'os' as os %}", 1, "not allowed"),
        ("{% from 'os' import system %}", 1, "not allowed"),
        ("{% extends 'x' %}", 1, "not allowed"),
        ("{% macro m() %}{{ m() }}{% endmacro %}\n{{ m() }}", 1, "calls itself"),
        ("{{ " + "(" * 5000 + ")" * 5000 + " }}", 1, "nested too deep"),
        ("{% for a in [1] %}" * 60 + "{% endfor %}" * 60, 1, "nested too deep"),
        ("{{ " + "9" * 6000 + " }}", 1, "too large a number"),
    ],
)
def test_an_error_is_one_line_with_the_template_s_line_number(source, line, words):
    """Whether it shows when parsing, compiling or rendering."""
    with pytest.raises(TemplateError) as caught:
        render(source)
    message = str(caught.value)
    assert message.startswith(f"chat template, line {line}: ")
    assert words in message
    assert "\n" not in message
    assert len(message) < 500


def test_a_huge_template_is_refused_unread():
    """Real ones have at most some ten thousand characters."""
    with pytest.raises(TemplateError, match=str(MAX_SOURCE_CHARS)):
        make_prompter("x" * (MAX_SOURCE_CHARS + 1))


def test_the_messages_are_never_changed():
    """A template that tries to is refused."""
    messages = list(CONVERSATION)
    for attempt in ("messages.append(1)", "messages.clear()", "messages[0].update({'role': 'x'})"):
        with pytest.raises(TemplateError, match="not allowed"):
            render("{{ " + attempt + " }}", messages)
    assert CONVERSATION == messages


def test_threads_can_share_a_template():
    """Renders take turns and do not see each other's counts."""
    template = ChatTemplate(
        "{% for i in range(300) %}{{ messages[0].content }}{% endfor %}", bos_text="", eos_text=""
    )
    results = {}

    def work(name: str) -> None:
        results[name] = template.render([Message("user", name)])

    threads = [threading.Thread(target=work, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: name * 300 for name in "0123"} == results


def test_long_conversations_are_within_the_bounds():
    """Two thousand turns, and two megabytes in one message, are rendered whole."""
    many = [Message("user" if n % 2 == 0 else "assistant", f"turn {n}") for n in range(2000)]
    for source in (USUAL["split"], USUAL["namespace"], USUAL["loop"]):
        assert reference(source, many) == render(source, many)
    large = [Message("system", "ab " * 700_000), Message("user", "hi")]
    assert reference(USUAL["split"], large) == render(USUAL["split"], large)


@pytest.mark.parametrize("source", [None, "", " \n"])
def test_without_a_template_the_text_is_raw(source):
    """System, blank line, user; later turns with blank lines between."""
    prompter = make_prompter(source)
    assert prompter.fallback
    assert "Be brief.\n\nhi" == prompter.render(
        [Message("system", "Be brief."), Message("user", "hi")]
    )
    turns = [Message("user", "a"), Message("assistant", "b"), Message("user", "c")]
    assert "ab\n\nc" == prompter.render(turns)  # the answer stands where it was written


ROLES = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
INST = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("source", "opens"),
    [
        (ROLES, False),
        (ROLES + "{% if add_generation_prompt %}<assistant>{% endif %}", True),
        ("{% for m in messages %}{{ m.content }} {% endfor %}", True),
        (INST, True),
        ("{{ messages[0].content }}", True),
        ("{{ raise_exception('no') }}", True),
        ("", True),
    ],
)
def test_a_template_that_leaves_the_opening_to_the_model_is_told_apart(source, opens):
    """From those where answers stand right behind questions, and those that cannot be asked."""
    assert opens == opens_answers(make_prompter(source))


NAMED = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]


@pytest.mark.parametrize("value", [NAMED, {"chat_template": NAMED}, {"chat_template": "D"}, "D"])
def test_of_named_templates_the_default_is_taken(value):
    """As tokenizer_config.json and chat_template.json hold them."""
    source = json.dumps(value) if value != "D" else value
    assert "D" == make_prompter(source).render(CONVERSATION)


@pytest.mark.parametrize(
    "source", ["[1, 2]", '{"a": 1}', '["a"]', "[INST] x", "{ [", "[" * 20_000, "[{}]"]
)
def test_what_only_looks_like_a_list_of_templates_is_one(source):
    """It is written as it is."""
    assert source == make_prompter(source).render(CONVERSATION)


@pytest.mark.parametrize("rows", [NAMED[:1], [{"name": "default", "template": 1}]])
def test_named_templates_without_a_default_are_refused(rows):
    """By their names."""
    with pytest.raises(TemplateError, match=f"templates {rows[0]['name']} none is named default"):
        make_prompter(json.dumps(rows))


def test_a_template_is_no_fallback():
    """The flag tells them apart."""
    assert [False, True] == [make_prompter("x").fallback, RawTemplate.fallback]


@pytest.mark.model
def test_the_template_of_a_real_model(smollm2_gguf):
    """SmolLM2's own, as the reference renders it."""
    import llama_cpp

    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    model = llama_cpp.llama_model_load_from_file(str(smollm2_gguf).encode(), params)
    source = llama_cpp.llama_model_chat_template(model, None).decode()
    llama_cpp.llama_model_free(model)
    values = {"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": True}
    for messages in (CONVERSATION, CONVERSATION[1:]):
        assert reference(source, messages, **values) == render(source, messages)
