"""The signature under an invitation: who changed it on the way, and has not the authority's key, is found out.

It is checked with the certificate inside. Who puts another authority there can sign for that one: people compare the
authority's fingerprint by phone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.core.errors import Problem, VitrailError
from vitrail.deploy.identity.certificates import StudyAuthority, fingerprint_key, is_signed, read_authority, sign_text

SIGNATURE = "signature"  # in an invitation
PURPOSE = "vitrail invitation 1"  # a signature for something else does not stand for this one


def sign_invitation(invitation: Mapping[str, Any], signer: StudyAuthority) -> dict[str, Any]:
    return {**invitation, SIGNATURE: sign_text(signer.key, PURPOSE, _signed_text(invitation))}


def check_signature(invitation: Mapping[str, Any], where: Path) -> str:
    """Before anything else in an invitation is read; the fingerprint of the authority that signed it."""
    authority = read_authority(invitation["authority"], where)
    if SIGNATURE not in invitation:
        what = "expected an invitation that the study's authority signed, but it has no signature."
        hint = "Ask the coordinator to run `vitrail invite` again with this version of Vitrail."
    elif not is_signed(authority, PURPOSE, _signed_text(invitation), invitation[SIGNATURE]):
        what = "its signature is not valid: somebody changed the invitation after the study's authority signed it."
        hint = "Do not use it. Ask the coordinator by phone to send it again by another channel."
    else:
        return fingerprint_key(authority.public_key())
    raise VitrailError("the invitation cannot be trusted", [Problem(str(where), what, hint)])


def _signed_text(invitation: Mapping[str, Any]) -> bytes:
    """All that it says, also what this version does not know, in one order."""
    return json.dumps({k: v for k, v in invitation.items() if k != SIGNATURE}, sort_keys=True).encode()
