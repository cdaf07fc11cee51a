"""What happens to one endpoint's streams between its server and here: the command `streamguard check`.

    request      what is asked, as curl takes it
    body         the bytes of an answer: its tokens, its signs of life, and what its own rules say of its end
    observation  one answer with the times of all of it
    evidence     all that was seen: the answers, and what was tried beside them
    fault        a row of the tables of faults: what shows it, the setting to change, the page of the docs
    endings      how an answer ended
    beside       what else may be wrong
    settings     what to change, by what stands in front
    diagnosis    what was found
    metrics      how many generations run, by what a model's server tells of itself
    transport    requests over httpx
    run          asks, observes, tries
    report       words, figures and JSON
    command      the options

All but `transport`, `run` and `report` are without I/O.
"""
