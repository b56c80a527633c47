"""Hides secrets in whatever is written or printed: configurations, environments, texts of scripts and logs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, overload

HIDDEN = "[hidden]"
_WORD = re.compile(r"[sS]3|[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Words of a name that make it a secret wherever they stand, also written together with others (PGPASSWORD, apikey).
_ALWAYS = re.compile(
    r"\w*(password|passwd|passphrase|passcode|secret|credential|bearer|cookie|jwt|webhook|mnemonic)s?"
    r"|\w*(api|access|secret|private|signing|encryption|account|auth)(key|token)s?|authorization|\w*pwd|dsn|sas|totp"
    r"|creds?|\w*sess(ion)?id|[as]k|otp|psk|conn(ect(ion)?)?str(ing)?"
    r"|(?!(sub|pre|de|tik|multi|non|per|next|pad|eos|bos|unk|sep|cls|mask|image)token)\w+token"
    r"|(?!(mon|tur|hot|hoc|don|joc|whis|lac|sub)key)\w+key|(ssh|ldap|db|pg|ftp|smtp|mail|git|proxy|http|judge|root|admin|user)pass"
)
# Words that make a name a secret as its last one, except after an ordinary word: prompt_key, pad_token, forward_pass.
_LAST = ("key", "token", "pass", "auth", "oauth", "session", "pat", "pw")
_ORDINARY = re.compile(
    # Columns of data, keys of mappings, and other keys that open nothing.
    r"prompt|fn|images?|videos?|audios?|media|multimodal|tools?|messages?|labels?|ids|responses?|answer|question"
    r"|query|inputs?|outputs?|text|context|chat|chosen|rejected|system|rewards?|metadata|meta|data|dataset"
    r"|dataloader|column|field|name|sort|order|group|cache|index|dict|state|metric|score|mask|loss|solution|target"
    r"|reference|truth|info|task|type|source|kwargs|thinking|id|uid|hash|hashing|lookup|join|primary|foreign"
    r"|partition|shard|row|feature|json|attr|param|balance|public|completions?|conversations?|instruction|turn"
    r"|sample|step|category|domain|difficulty|eval|val|test|train|batch|position|attention|teacher|student|config"
    r"|default|length|set|layer|tag|quant|prng|weight|dispatch|module|kernel"
    # Tokens of a language model.
    r"|pad|eos|bos|unk|sep|cls|start|end|begin|stop|special|think|eot|eom|boi|eoi|per|next|last|first|prev|previous"
    r"|one|new|extra|draft|assistant|placeholder|visual|vision|speech|modality|beginning|ending"
    # Passes that are no passwords.
    r"|forward|backward|second|third|two|single|multi|num|max|n|by|full|each|every|fast|slow|inductor|gradient"
    r"|prefill|decode|compile|fusion|graph"
)
# Before `key` and `token` in any number and place: access_tokens, api_key_id, hf_token_read.
_GIVES_ACCESS = re.compile(
    r"api|access|refresh|auth|oauth|bearer|session|hub|hf|huggingface|wandb|github|gh|gitlab|slack|discord"
    r"|telegram|bot|openai|anthropic|azure|aws|gcp|google|gemini|mistral|cohere|groq|together|deepseek|openrouter"
    r"|dashscope|modelscope|swanlab|comet|neptune|clearml|kaggle|ngc|nvapi|vault|docker|npm|pypi|personal|deploy"
    r"|private|secret|ssh|gpg|pgp|csrf|xsrf|identity|admin|account|storage|subscription|client|consumer|signing"
    r"|encryption|master|license"
)
# Before `code`; other codes are programs, languages and states.
_ADMITS = re.compile(
    r"access|auth|authori[sz]ation|authentication|registration|recovery|invit(e|ation)|verification|activation|backup"
    r"|security|login|license|unlock|pairing|pin|mfa"
)
# What a bare `key`, `token`, `pass` or `code` opens, if it is inside these beside the ones above.
_PLACES = re.compile(r"s3|gcs|oss|minio|blob|bucket|fs|fsspec|filesystem|database|redis|smtp|credentials?")
# Says that there is more inside: the name around it counts, as of `storage.options.key`.
_CONTAINERS = re.compile(
    r"options?|opts|(kw)?args|conf(ig)?|cfg|params|settings|defaults?|extra|propert(y|ies)|backend"
)
# Names that may be ordinary, by their last word: a secret if the value looks like one.
_MAYBE = ("private", "sig", "recovery", "unseal", "vault", "pin", "license", "bot", "hmac", "salt", "nonce", "access")
_MAYBE_WHOLE = re.compile(r"x_api|(\w+_)?(teams|slack|discord|feishu|lark|telegram|dingtalk|wecom|notify)_ur[li]")
_LIKE_A_SECRET = re.compile(r"(?<![a-z0-9])(?=[a-z]*\d+[a-z]|\d*[a-z]+\d)[a-z0-9]{8,}", re.IGNORECASE)
# After `token`, `auth` and `session`: hf_token_read, auth_header.
_KINDS_OF_VALUE = re.compile(
    r"read|write|ro|rw|value|secret|string|str|headers?|prod|dev|admin|b64|base|json|pem|material|code|ticket|main"
    r"|old|cookie|user"
)
# Values that open nothing: none at all, a name of what has it, and what hides it already.
_OPENS_NOTHING = re.compile(r"|none|null|true|false|~|<\w+>|\*+|\[hidden\]|\$\w+|\$\{[\w.:]+\}", re.IGNORECASE)

# Keys of Hugging Face, OpenAI and similar, GitHub, GitLab, AWS, Google, Slack, npm, PyPI, NVIDIA, Groq, Docker, wandb,
# Stripe, Replicate, SendGrid, xAI, LangSmith, Tailscale, DigitalOcean, Vault, Grafana, Perplexity, ModelScope and age,
# and JSON web tokens. wandb's older keys are 40 hex digits, like a commit: only what is before them shows it.
_KNOWN = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}"
    r"|glpat-[\w-]{16,}|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[\w-]{30,}|xox[a-z]-[\w-]{10,}|xapp-[\w-]{10,}|npm_[A-Za-z0-9]{30,}"
    r"|pypi-[\w-]{30,}|nvapi-[\w-]{20,}|gsk_[A-Za-z0-9]{20,}|dckr_pat_[\w-]{20,}|wandb_v\d_\w{20,}"
    r"|[srp]k_(?:live|test)_[A-Za-z0-9]{16,}|r8_[A-Za-z0-9]{20,}|SG\.[\w-]{16,}\.[\w-]{16,}|xai-[A-Za-z0-9]{20,}"
    r"|lsv2_[a-z]{2}_\w{16,}|tskey-[a-z]+-[\w-]{10,}|do[opr]_v1_\w{20,}|ya29\.[\w-]{20,}|AGE-SECRET-KEY-1\w{20,}"
    r"|hvs\.[\w-]{20,}|glsa_\w{20,}|pplx-[A-Za-z0-9]{20,}|ms-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{20,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,})"
)
_PEM = re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----.*?(?:-----END [A-Z0-9 ]*-----|\Z)", re.DOTALL)
# A user name alone may be a token; `git` is everybody's, and an image is pinned by `@sha256:`.
_USERINFO = re.compile(
    r"(?<=://)(?!git@)[^\s/?#'\"<>]+(?=@(?!sha256:))|(?<![\w/.@])[\w.+-]+:[^\s/@:'\"]+(?=@(?!sha256:)[\w-])"
)
# Addresses whose path is the secret: of Slack, Discord, Feishu, Lark, Teams, Zapier, IFTTT and alike, of Telegram's
# bots, and topics of ntfy.
_HOOK = re.compile(
    r"((?<![\w.-])(?:https?://)?(?:(?:hooks\.[\w.-]{3,99}|[\w-]{1,99}\.webhook\.office\.com)/"
    r"|api\.telegram\.org/(?:file/)?bot|(?<![\w.-])ntfy\.sh/|\bmaker\.ifttt\.com/(?:[\w-]{1,40}/){1,5}key/)"
    r"|(?:://[^\s/\"'<>]{1,99}|\b(?:discord(?:app)?\.com|feishu\.cn|larksuite\.com))(?:/[^\s/?#\"'<>]{1,40}){0,5}"
    r"/(?:web)?hooks?/(?=[\w/-]{0,200}?\d))(?!\[hidden)[^\s\"'<>\\,;)}\]]+"
)
_QUERY = re.compile(r"(?<=[?&;])((?:key|code|sig|signature|x-amz-[a-z-]+)=)[^&\s\"'#]+", re.IGNORECASE)
_SCHEME = re.compile(r"\b((?i:Bearer|Basic)\s+)(?!\[hidden)(?=\S*(?:\d|[a-z][A-Z]|=|[\w.-]{20}))[^\s\"',;)}\]]{6,}")
_LOGIN = re.compile(
    r"(\b(?:wandb|swanlab|hf|huggingface-cli)\s+login\s+(?:--?[\w-]+\s+)*)(?!-)[^\s;&|]+"
    r"|((?<![\w-])key[\"']?\s*[=:]\s*[\"']?)[0-9a-f]{20,}"
    r"|((?:(?<!\S)(?:-u|--user)[= ]\s*|\bcurl\b[^\n;&|]{0,200}?\s-u)[\"']?)(?!\d+:\d+)[^\s\"':/]+:[^\s\"']+"
)
# Passwords by a flag that means something else with other programs; ~/.netrc; a program's call. Each begins with a
# word, for which a text is searched fast.
_FLAG = re.compile(
    r"(login(?=\s)[^\n;&|]{0,200}?\s-p[ =]*[\"']?|sshpass\s+-p\s*[\"']?|redis-cli\b[^\n;&|]{0,200}?\s-a\s*[\"']?"
    r"|mysql[\w-]*\b[^\n;&|]{0,200}?\s-p[\"']?|mariadb[\w-]*\b[^\n;&|]{0,200}?\s-p[\"']?)(?![-\s])[^\s\"';&|]+"
)
_NETRC = re.compile(
    r"((?:login|machine)\s+(?!(?:and|or|with|by|via|using|the|a|your|name)\b)\S+\s+(?:account\s+\S+\s+)?password\s+)\S+"
)
_CALL = re.compile(r"(login\(\s*(?:[\"'][^\"'\n]{0,99}[\"']\s*,\s*|key\s*=\s*)?[\"'])[^\"'\n]+")
# A name and what separates it from its value: `name=`, `"name": `, `--name `.
_NAMED = re.compile(
    r"(?<![\w.-])(?P<name>-{0,2}[A-Za-z_][\w.-]*)(?:\\?[\"']?\]?[ \t]*(?P<by>=>|[:=])[ \t]*|[ \t]+(?![-=:]))"
)
_QUOTED = r"[$bru]?(?:\\\"(?:[^\"\\]|\\[^\"])*(?:\\\")?|\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?)"
_PLAIN = r"(?:[^\s,;:&\"'<>|)}\]]|:(?!\s|$)|,(?![\s\"']|$|[\w.-]+[=:])|[)}\]](?![\s,;)}\]\"'&|]|$))+"
_NESTED = r"\{(?:[^{}]|\{[^{}]*\})*\}?|\[(?:[^\[\]]|\[[^\[\]]*\])*\]?"
# A shell joins a word of quoted and plain parts; a quote before a space or a comma ends what is around the name.
_JOINED = rf"(?:{_QUOTED}|{_PLAIN})(?:{_PLAIN}|(?=[\"'][^\s,;:)}}\]]){_QUOTED})*"
_VALUE = re.compile(rf"(?:Bearer\s+|Basic\s+)?(?:{_NESTED}|{_JOINED})")
# Other words for it: `setenv NAME VALUE`, `setdefault('NAME', 'VALUE')`; and `name: NAME, value: VALUE`.
_SET = re.compile(
    r"((?:\b(?:(?:set|put|get)env|environ\.get|setdefault|config(?:ure)?[ \t]+set)"
    r"|(?<![\w-])set(?:[ \t]+--?[a-zA-Z][\w-]*)+)(?:[ \t]+|[ \t]*\([ \t]*)[\"']?(?P<name>[A-Za-z_][\w.-]*)[\"']?"
    rf"(?:[ \t]*,[ \t]*|[ \t]+))(?P<value>{_NESTED}|{_JOINED})"
)
_PAIR = re.compile(
    r"(\b(?:name|key)\\?[\"']?\s*[:=]\s*\\?[\"']?(?P<name>[A-Za-z_][\w.-]*)\\?[\"']?\s*(?:,\s*)?"
    rf"\\?[\"']?value\\?[\"']?\s*[:=]\s*)(?P<value>{_NESTED}|{_JOINED})"
)
# The rest of a password in a connection's words, `Password=a b;Timeout=5`.
_MORE = re.compile(r"(?![ \t]*[;&|])[^;\n\"'=&|]+(?=;(?:\s*(?:$|[\"'\n])|[A-Z][\w ]*=))")
# The values of these may have spaces.
_LONG = re.compile(r"authorization|cookie|passphrase|mnemonic", re.IGNORECASE)
_LINE = re.compile(rf"{_QUOTED}|[^\"'\n]+")
_PROSE = re.compile(r"[a-z']+ +[a-z(]")


def is_secret_name(name: str) -> bool:
    """Whether the value of a setting, variable, option or header of this name is a secret; also of its parents."""
    return _kind(name) == "secret"


@lru_cache(maxsize=65536)
def _kind(name: str) -> str:
    """`secret`, `maybe` if its value must tell, or nothing."""
    parts = [part for part in re.split(r"[./\[\]:]+", name) if part]
    if any(map(_is_secret, parts)) or any(_opens(part.lower(), parts[:at]) for at, part in enumerate(parts)):
        return "secret"
    words = _words(parts[-1]) if parts else []
    may_be = words and (words[-1] in _MAYBE or _MAYBE_WHOLE.fullmatch("_".join(words)))
    return "maybe" if may_be else ""


def _opens(name: str, parents: Sequence[str]) -> bool:
    """Whether a bare `key`, `token`, `pass` or `code` opens what is around it: the last word that is no container."""
    is_code = name in ("code", "codes")
    if not is_code and name not in ("key", "keys", "token", "pass"):
        return False
    around = (word for part in reversed(parents) for word in reversed(_words(part)))
    place = next((word for word in around if not _CONTAINERS.fullmatch(word)), "")
    known = (_ADMITS,) if is_code else (_GIVES_ACCESS, _PLACES)
    return any(one.fullmatch(place) for one in known)


def _words(part: str) -> list[str]:
    """The words of a name, also of camelCase, in lower case."""
    return [word.lower() for word in _WORD.findall(part)]


@lru_cache(maxsize=65536)
def _is_secret(part: str) -> bool:
    words = _words(part)
    if "@" in part or words == ["key"]:
        return False
    for before, word, after in zip(["", *words], words, [*words[1:], ""], strict=False):
        access = _GIVES_ACCESS.fullmatch(before) and word in ("key", "keys", "token", "tokens")
        admits = _ADMITS.fullmatch(before) and word in ("code", "codes")
        if access or admits or _ALWAYS.fullmatch(word):
            return True
        opens = word in _LAST and (not _ORDINARY.fullmatch(before) or (before, word) == ("id", "token"))
        if opens and (not after or (word in ("auth", "session", "token") and _KINDS_OF_VALUE.fullmatch(after))):
            return True
    return words in (["session", "id"], ["conn", "str"], ["connection", "string"])


@overload
def without_secrets(value: str, name: str = "") -> str: ...
@overload
def without_secrets(value: Mapping[str, Any], name: str = "") -> dict[str, Any]: ...
@overload
def without_secrets(value: Any, name: str = "") -> Any: ...
def without_secrets(value: Any, name: str = "") -> Any:
    """A text, or a setting's value with all that is in it, without keys, tokens and passwords.

    `name`: what it is called, with its parents' names (`judge.api_key`); what a secret's name holds is hidden whole.
    """
    hide = is_secret_name(name)
    if isinstance(value, Mapping):
        named = value.get("value") is not None and next((value[at] for at in ("name", "key") if at in value), "")
        return {
            _text(str(key)): _hidden(item)
            if hide or (key == "value" and isinstance(named, str) and is_secret_name(named))
            else without_secrets(item, f"{name}.{key}")
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_hidden(item) for item in value] if hide else list(_items(value, name))
    if hide:
        return _hidden(value)
    if isinstance(value, bool | int | float) or value is None:
        return value
    if _kind(name) == "maybe" and _LIKE_A_SECRET.search(str(value)):
        return HIDDEN
    shown = _text(str(value))
    return value if shown == str(value) else shown


def has_secret(text: str) -> bool:
    """Whether a text holds a secret."""
    return _text(text) != text


def _hidden(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_text(str(key)): _hidden(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hidden(item) for item in value]
    opens_nothing = value is None or isinstance(value, bool) or _OPENS_NOTHING.fullmatch(str(value))
    return value if opens_nothing else HIDDEN


def _items(values: Sequence[Any], name: str) -> Iterator[Any]:
    """The items of a list of this name, which may be the words of a command, or a name and its value."""
    before = ""
    for value in values:
        flag = before.startswith("-") and "=" not in before and not str(value).startswith("-")
        if (flag or (before and len(values) == 2)) and is_secret_name(before.lstrip("-")):
            yield _hidden(value)
        else:
            yield without_secrets(value, name)
        before = value if isinstance(value, str) else ""


def _text(text: str) -> str:
    if len(text) < 4:
        return text
    text = _KNOWN.sub(HIDDEN, _PEM.sub(HIDDEN, text))
    text = _QUERY.sub(rf"\1{HIDDEN}", _USERINFO.sub(HIDDEN, _HOOK.sub(rf"\1{HIDDEN}", text)))
    text = _PAIR.sub(_given, _SET.sub(_given, text))
    parts, at = list[str](), 0
    for found in _NAMED.finditer(text):
        if found.start() >= at and (value := _value_after(found, text)) is not None:
            start, at_next, shown = value
            parts += [text[at:start], shown]
            at = at_next
    text = "".join([*parts, text[at:]])
    for one in (_SCHEME, _FLAG, _NETRC, _CALL):
        text = one.sub(rf"\1{HIDDEN}", text)
    return _LOGIN.sub(rf"\1\2\3{HIDDEN}", text)


def _value_after(found: re.Match[str], text: str) -> tuple[int, int, str] | None:
    """Where the value of a name in a text is, and what is shown instead; None if nothing is to be hidden."""
    name, by = found["name"], found["by"]
    if (by is None and not name.startswith("-")) or not (kind := _kind(name.lstrip("-"))):
        return None
    value = (_LINE if _LONG.search(name) and by == ":" else _VALUE).match(text, found.end())
    is_prose = by == ":" and found[0][-1].isspace() and not re.fullmatch("(?i:(proxy-)?authorization)", name)
    if value is None or (kind == "maybe" and not _LIKE_A_SECRET.search(value[0])):
        return None
    if (is_prose and _PROSE.match(text, found.end())) or (shown := _shown(value[0])) is None:
        return None
    more = by == "=" and re.fullmatch("(?i:password|pwd)", name) and _MORE.match(text, value.end())
    return value.start(), more.end() if more else value.end(), shown


def _given(found: re.Match[str]) -> str:
    shown = _shown(found["value"]) if is_secret_name(found["name"]) else None
    return found[0] if shown is None else found[1] + shown


def _shown(value: str) -> str | None:
    """What stands for a value, in its quotes; None if it opens nothing."""
    if _OPENS_NOTHING.fullmatch(re.sub(r"^[$bru]?\\?[\"']|\\?[\"']$", "", value)):
        return None
    quote = re.match(r"\\?[\"']", value)
    mark = quote[0] if quote else ""
    return f"{mark}{HIDDEN}{mark}"
