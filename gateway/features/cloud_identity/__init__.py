"""The identity that a cloud gives the gateway's machine, by the official library of that cloud.

Each library is an extra: `nearhit[azure]`, `nearhit[google]`, `nearhit[aws]`. They find a workload identity, an
instance role or a login by themselves, in the order that their documentation states.
"""
