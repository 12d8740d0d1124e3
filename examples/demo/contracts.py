"""Contracts for the demo: how disputes end is settled in one clause, far behind the opening.

Everything is drawn from one seeded generator, the deciding clause last. So two contracts of the
same number that differ in their label have every word before that clause in common, and the opening
cannot tell the label.
"""

import random

LABELS = ("arbitration", "court")

FIRST = (
    "Alder Amber Ardent Beacon Birch Bright Cedar Cobalt Copper Crest Delta Ember Falcon Fern "
    "Granite Harbor Hazel Ivory Juniper Keystone Larch Linden Maple Meridian Northgate Oak "
    "Orchard Pioneer Quarry Raven Ridge River Sable Silver Spruce Summit Tamarind Union Vale "
    "Verdant Walnut Westbrook Willow Zephyr"
).split()
SECOND = (
    "Analytics Bearings Biologics Castings Ceramics Components Controls Devices Dynamics Energy "
    "Engineering Fabrics Foods Freight Imaging Instruments Laboratories Logistics Marine Metals "
    "Mobility Networks Optics Packaging Paper Pharma Plastics Power Robotics Software Textiles"
).split()
FORM = ("Inc.", "LLC", "Ltd.", "GmbH", "B.V.", "S.A.", "Corp.", "plc")
CITY = (
    "Amsterdam Boston Brussels Chicago Copenhagen Dublin Edinburgh Geneva Hamburg Helsinki Lisbon "
    "London Lyon Madrid Milan Montreal Munich Oslo Paris Prague Seattle Singapore Stockholm Sydney "
    "Toronto Vienna Warsaw Zurich"
).split()
MONTH = (
    "January February March April May June July August September October November December"
).split()
GOODS = (
    "pressure sensors",
    "laboratory reagents",
    "control software",
    "packaging film",
    "hydraulic pumps",
    "optical lenses",
    "data feeds",
    "refrigerated containers",
    "battery modules",
    "printed circuit boards",
    "surgical instruments",
    "warehouse robots",
)
SERVICE = (
    "installation and commissioning",
    "preventive maintenance",
    "remote monitoring",
    "training of operators",
    "calibration",
    "technical support",
    "quality inspection",
    "spare parts logistics",
)

# Heading, then sentences; a contract takes some of the sentences of an article.
ARTICLES = {
    "Definitions": (
        "“Affiliate” means any company that controls, is controlled by or is under common "
        "control with a party, for as long as such control lasts.",
        "“Business Day” means a day on which banks in {city} are open, other than a Saturday.",
        "“Deliverables” means the {goods}, the documents and the results of the {service} which "
        "{supplier} provides under an Order.",
        "“Order” means a written request of {customer} which {supplier} has accepted, and which "
        "refers to this Agreement by its date.",
        "“Specifications” means the technical description in Schedule {small}, as amended from "
        "time to time by the parties in writing.",
        "“Site” means the premises of {customer} at {city2}, and any other place that the parties "
        "name in an Order.",
    ),
    "Scope of Supply": (
        "{supplier} shall supply the {goods} and perform {service} as described in each Order, and "
        "{customer} shall take delivery of them.",
        "{customer} expects to order goods worth about {sum} in each contract year, but gives no "
        "undertaking to buy any minimum quantity.",
        "{supplier} may use subcontractors for {service2} if it names them beforehand and remains "
        "responsible for their work.",
        "An Order binds the parties once {supplier} confirms it, which it shall do within {days} "
        "days after receipt.",
        "Terms printed on an invoice, a delivery note or a purchase form do not apply, even where "
        "a party does not object to them.",
        "Changes to the Specifications are agreed in writing, together with their effect on price "
        "and time.",
    ),
    "Price and Payment": (
        "The prices are set out in Schedule {small} and stay fixed until {month} {year}, after "
        "which they follow the published index for producer prices.",
        "Invoices are payable within {days} days after receipt, by transfer to the account named "
        "on the invoice.",
        "{customer} may withhold the disputed part of an invoice if it gives its reasons within "
        "{days2} days, and shall pay the rest when due.",
        "Late sums bear interest at {percent} percent a year above the base rate of the central "
        "bank, from the due date until payment.",
        "All amounts are stated without value added tax, which {customer} pays in addition where "
        "the law so requires.",
        "Travel of the staff of {supplier} is charged at cost and up to {sum2} for each visit.",
    ),
    "Delivery and Risk": (
        "Delivery takes place at {city2} on the date named in the Order, and risk passes when "
        "unloading begins.",
        "If {supplier} is late by more than {days} days, {customer} may claim {percent} percent of "
        "the price of the late goods for every full week.",
        "{supplier} tells {customer} as soon as it expects a delay, and states the cause and the "
        "new date.",
        "Packing must suit carriage by road and sea; pallets and crates remain the property of "
        "{supplier} and are returned within {days2} days.",
        "Title passes on payment in full, and until then {customer} stores the {goods} apart from "
        "other stock and insures them.",
        "Partial deliveries are allowed where the Order says so.",
    ),
    "Inspection and Acceptance": (
        "{customer} inspects the {goods} within {days} days after arrival and reports visible "
        "defects with the batch number.",
        "Acceptance tests follow the protocol in Schedule {small}, in the presence of one engineer "
        "of each party.",
        "If a test fails, {supplier} corrects the fault at its own expense and the test is "
        "repeated within {days2} days.",
        "Use of the Deliverables in production for more than {days} days counts as acceptance.",
        "A certificate of acceptance lists minor faults that remain, and the date by which they "
        "will be cured.",
    ),
    "Warranty": (
        "{supplier} warrants that the {goods} meet the Specifications and are free from defects "
        "in material and workmanship for {months} months after acceptance.",
        "{customer} notifies a defect within {days} days after finding it, and {supplier} then "
        "repairs or replaces the part.",
        "The warranty does not cover ordinary wear, misuse, or repairs by persons whom {supplier} "
        "has not approved.",
        "A replaced part carries a fresh warranty of {months2} months, but never longer than the "
        "life of the original one doubled.",
        "{service_cap} is carried out by trained staff with the care of a prudent expert.",
        "Apart from what this article says, no promise about quality or fitness is implied.",
    ),
    "Confidentiality": (
        "Each party keeps secret what it learns about the business of the other, and uses it only "
        "for the purposes of this Agreement.",
        "The duty ends {years} years after the Agreement does, and does not extend to facts which "
        "are public without a breach.",
        "A party may disclose what a court, an arbitral tribunal or an authority orders it to "
        "disclose, after telling the other party where that is lawful.",
        "Samples, drawings and copies are returned or destroyed {days} days after a request.",
        "Advisers and Affiliates may be informed if they are bound to the same degree of secrecy.",
    ),
    "Intellectual Property": (
        "Each party keeps the patents, designs and know-how that it brings into the cooperation.",
        "{supplier} grants {customer} a licence, not exclusive and without time limit, to use the "
        "Deliverables at the Site and to maintain them.",
        "Improvements made jointly belong to both parties in equal shares, and each may exploit "
        "them without accounting to the other.",
        "If a third party claims that the {goods} infringe its rights, {supplier} defends the "
        "claim in court or settles it, and bears the cost.",
        "{customer} shall not decompile software or remove marks of origin from the {goods}.",
    ),
    "Insurance": (
        "{supplier} maintains liability insurance with cover of at least {sum} for each event, and "
        "shows the policy on request.",
        "{customer} insures the Site and its own staff against the usual risks.",
        "Cover is kept up for {years} years after the last delivery.",
        "A party that receives notice of cancellation from its insurer passes it on within "
        "{days2} days.",
        "Deductibles are borne by the party that took out the policy.",
    ),
    "Limitation of Liability": (
        "The liability of a party under this Agreement in any contract year is limited to {sum}, "
        "whatever the legal ground.",
        "Neither party owes lost profit, loss of production or indirect damage.",
        "These limits do not apply to death, injury, intent, or sums awarded by a court to a third "
        "party for infringement.",
        "Claims lapse if they are not raised within {months} months after the injured party knew "
        "of them.",
        "{customer} takes reasonable steps to keep its damage small, and tells {supplier} what it "
        "has done.",
    ),
    "Force Majeure": (
        "A party is excused while flood, fire, strike, war or an act of government keeps it from "
        "performing, if it gives notice within {days2} days.",
        "The time for performance is extended by the length of the event and a reasonable period "
        "to start again.",
        "If the event lasts more than {months2} months, either party may end the Orders affected.",
        "Payment of sums already due is not excused.",
        "Shortage of labour or material is no such event unless the market as a whole is affected.",
    ),
    "Data Protection": (
        "Where {supplier} handles personal data, it does so on the written instructions of "
        "{customer} and within the European Economic Area.",
        "Backups are encrypted, kept at {city} and deleted after {days} days.",
        "{supplier} reports a breach of security within {hours} hours after it learns of it.",
        "Access is granted to named persons only, and logged.",
        "Requests of data subjects are forwarded to {customer} without answering them.",
    ),
    "Personnel": (
        "{supplier} sends qualified staff who follow the safety rules of the Site, which "
        "{customer} hands out on arrival.",
        "Nothing here creates employment between {customer} and the staff of {supplier}.",
        "Neither party solicits the employees of the other during the term and {months2} months "
        "after it.",
        "{customer} may ask for the replacement of a person for good cause, and {supplier} sends "
        "another within {days} days.",
        "The steering group meets every {months2} months in {city}; it may recommend mediation by "
        "a person it trusts.",
    ),
    "Compliance": (
        "Each party obeys the laws on export control, bribery and forced labour that apply to it.",
        "{supplier} holds certificates for its quality system and renews them before they expire.",
        "{customer} may visit the plant in {city2} once a year, on {days} days' notice, to see "
        "how the {goods} are made.",
        "A party that is fined by a court or authority for a breach of these laws informs the "
        "other at once.",
        "Gifts above {sum3} are refused and reported.",
    ),
    "Term and Termination": (
        "This Agreement begins on {month} {day}, {year} and runs for {years} years; it is then "
        "renewed from year to year.",
        "Either party may end it at the close of a contract year on {months2} months' notice.",
        "A party may end it at once if the other becomes insolvent, or fails to cure a material "
        "breach within {days} days after a warning.",
        "Orders that are open at the end are performed under these terms.",
        "On termination {supplier} hands over the documents that {customer} needs to run the "
        "{goods}, against payment of {sum2}.",
    ),
    "Notices": (
        "Notices are given in writing to the address on the first page, and take effect when they "
        "arrive.",
        "Messages by electronic mail suffice for Orders and reminders, not for termination.",
        "{customer} names the head of purchasing, {supplier} the head of sales as its contact.",
        "A change of address is notified {days2} days in advance.",
        "Papers that begin proceedings before a court or tribunal are served on the registered "
        "office.",
    ),
}

OPENING = (
    "This {kind} Agreement is made on {month} {day}, {year} between {supplier_full}, with its "
    "registered office in {city} (“{supplier}”), and {customer_full}, with its registered office "
    "in {city2} (“{customer}”). {supplier} makes and services {goods}. {customer} wishes to buy "
    "{goods} and {service} for its plant. The parties therefore agree as follows."
)
CLOSING = (
    "Signed in two originals in {city} on {month} {day}, {year}. For {supplier}: {name}, managing "
    "director. For {customer}: {name2}, head of purchasing."
)
DECIDING = {  # label -> the first sentence is one of the first, others follow
    "arbitration": (
        (
            "All disputes arising out of this Agreement are finally settled by arbitration under "
            "the rules of the chamber of commerce of {city3}.",
            "Any controversy about this Agreement shall be referred to and decided by an arbitral "
            "tribunal of three members, one of whom presides.",
            "The parties submit every claim under this Agreement to binding arbitration before "
            "three arbitrators.",
        ),
        (
            "The seat of arbitration is {city3}, and the hearings are held in English.",
            "Each party names one arbitrator within {days} days; these two choose the third.",
            "The award is final, and is made in writing with reasons.",
            "The arbitrators may order interim measures and decide who bears the fees.",
            "The ordinary courts have no jurisdiction, except to enforce the award.",
            "Neither party shall bring an action in court before the tribunal has ruled.",
        ),
    ),
    "court": (
        (
            "The courts of {city3} have exclusive jurisdiction over all disputes arising out of "
            "this Agreement.",
            "Any controversy about this Agreement shall be brought before and decided by the "
            "competent state court in {city3}.",
            "The parties submit every claim under this Agreement to the ordinary courts sitting in "
            "{city3}.",
        ),
        (
            "Each party waives its objections to venue, and accepts service of process there.",
            "The losing party bears the court fees and the cost of counsel as the judge sees fit.",
            "Trial by jury is waived to the extent that the law allows.",
            "A judgment may be appealed, and may be enforced in any other country.",
            "No dispute is referred to arbitration, and an arbitral award binds nobody.",
            "Neither party shall ask a tribunal of arbitrators to rule on the claim.",
        ),
    ),
}


def contract(number, label, seed=0):
    """One contract.

    Args:
        number: which one; another number gives other parties, articles, sums and dates.
        label: one of `LABELS`.
        seed: of the whole collection.

    Returns:
        dict with ``id``, ``text``, ``label``, and ``clause``, the character at which the deciding
        clause begins.
    """
    draw = random.Random(f"{seed}-{number}")
    facts = _facts(draw)
    headings = ["Definitions", *draw.sample(list(ARTICLES)[1:-2], 8), *list(ARTICLES)[-2:]]
    place = draw.randrange(7, len(headings))  # the deciding article's, behind about 700 tokens
    paragraphs = [f"{facts['kind'].upper()} AGREEMENT", OPENING.format(**facts)]
    for heading in headings:
        if len(paragraphs) - 2 == place:
            paragraphs.append("")
        sentences = draw.sample(ARTICLES[heading], draw.choice((4, 5)))
        sentences = [sentence.format(**facts | _figures(draw)) for sentence in sentences]
        paragraphs.append(f"{heading}. {' '.join(sentences)}")
    paragraphs.append(CLOSING.format(**facts))
    first, more = DECIDING[label]
    sentences = [draw.choice(first), *draw.sample(more, 5)]
    sentences = [sentence.format(**facts | _figures(draw)) for sentence in sentences]
    hole = paragraphs.index("")
    paragraphs[hole] = f"Disputes. {' '.join(sentences)}"
    articles = range(2, len(paragraphs) - 1)
    paragraphs = [f"{i - 1}. {p}" if i in articles else p for i, p in enumerate(paragraphs)]
    return {
        "id": f"contract-{number:04}",
        "text": "\n\n".join(paragraphs),
        "label": label,
        "clause": len("\n\n".join(paragraphs[:hole])) + 2,
    }


def contracts(numbers, seed=0):
    """As many contracts of each label as of the other, in an order that tells nothing."""
    numbers = list(numbers)
    labels = [LABELS[i % 2] for i in range(len(numbers))]
    random.Random(f"{seed}-{numbers[0]}-labels").shuffle(labels)
    return [contract(number, label, seed) for number, label in zip(numbers, labels, strict=True)]


def _facts(draw):
    """What stays the same throughout a contract."""
    first, other = draw.sample(FIRST, 2)
    second, another = draw.choices(SECOND, k=2)
    supplier, customer = f"{first} {second}", f"{other} {another}"
    city, city2, city3 = draw.sample(CITY, 3)
    service, service2 = draw.sample(SERVICE, 2)
    return {
        "kind": draw.choice(("Supply", "Framework", "Purchase and Services", "Master Supply")),
        "supplier": supplier,
        "supplier_full": f"{supplier} {draw.choice(FORM)}",
        "customer": customer,
        "customer_full": f"{customer} {draw.choice(FORM)}",
        "city": city,
        "city2": city2,
        "city3": city3,
        "goods": draw.choice(GOODS),
        "service": service,
        "service_cap": service[0].upper() + service[1:],
        "service2": service2,
        "month": draw.choice(MONTH),
        "day": draw.randint(1, 28),
        "year": draw.randint(2009, 2025),
        "name": f"{draw.choice('ABCDEFGHJKLM')}. {draw.choice(FIRST)}",
        "name2": f"{draw.choice('ABCDEFGHJKLM')}. {draw.choice(FIRST)}",
    }


def _figures(draw):
    """What differs from one sentence to the next."""
    currency = draw.choice(("EUR", "USD", "GBP", "CHF"))
    return {
        "days": draw.choice((10, 14, 15, 20, 28, 30, 45, 60)),
        "days2": draw.choice((3, 5, 7, 8, 12)),
        "hours": draw.choice((12, 24, 36, 48, 72)),
        "months": draw.choice((12, 18, 24, 30, 36)),
        "months2": draw.choice((2, 3, 4, 6, 9)),
        "years": draw.choice((2, 3, 4, 5, 7, 10)),
        "percent": draw.choice((0.5, 1, 1.5, 2, 3, 4, 5)),
        "small": draw.randint(1, 9),
        "sum": f"{currency} {draw.randint(2, 90) * 50_000:,}",
        "sum2": f"{currency} {draw.randint(2, 90) * 500:,}",
        "sum3": f"{currency} {draw.randint(2, 20) * 10}",
    }
