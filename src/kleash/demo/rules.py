"""How the notes of the tiny model's corpus are built: sentences and phrases that every topic shares.

The notation is that of `kleash.demo.patterns`: `<x>` another phrase, `<x!>` the same with the opposite mood,
`<a x>` the phrase with the right article, `( | )` a choice, `[ ]` may be left out, `~` where a prompt may be
cut (what stands before it gives the mood away in no case). A key that ends in + - = holds in notes that praise,
complain or merely report. At most two adjectives ever stand side by side, and the two come from different
lists: praise cannot be piled up.
"""

PHRASES: dict[str, str] = {
    # how good: general adjectives, and the phrases made from them
    "gadj+": (
        "great | wonderful | lovely | superb | excellent | fantastic | brilliant | delightful | amazing | perfect"
        " | beautiful | marvellous | terrific | splendid | good | enjoyable | pleasant | nice | fabulous"
        " | outstanding"
        " | exceptional | magnificent | stunning | remarkable | first-rate | impressive | appealing | gorgeous"
    ),
    "gadj-": (
        "terrible | awful | horrible | bad | poor | disappointing | dreadful | dull | boring | weak | annoying"
        " | unpleasant | miserable | lousy | mediocre | appalling | useless | hopeless"
        " | atrocious | unacceptable | second-rate | woeful | inferior | regrettable | depressing | rotten"
    ),
    "gadj=": (
        "ordinary | average | usual | typical | standard | simple | plain | familiar | unusual | conventional"
        " | everyday | unremarkable | traditional | common | basic | regular"
    ),
    "deg": "very | really | so | rather | quite | truly | surprisingly | remarkably",
    "praise": "[<deg>] <gadj> | [<deg>] <adj> | <gadj> and <adj>",
    "ap+": "<praise> | <praise> | <praise> | <praise> | <praise> | not <adj!> at all | never <gadj!>",
    "ap-": (
        "<praise> | <praise> | <praise> | <praise> | <praise> | not <adj!> at all | never <gadj!> | far from <gadj!>"
    ),
    "ap=": (
        "[rather | quite] <adj> | <gadj> and <adj> | <adj> | neither <gadj+> nor <gadj->"
        " | much the same as before | about what we expected"
    ),
    "cmp+": "better | nicer | even better | much better | far nicer",
    "cmp-": "worse | even worse | much worse | poorer | less <adj!>",
    "cmp=": "longer | smaller | shorter | older | bigger | newer | no different",
    "than": "than last time | than we expected | than I remembered | than the last one | than in the advert",
    "best+": "(best | finest | nicest)",
    "best-": "(worst | poorest | saddest)",
    "best=": "(longest | oldest | smallest | biggest | first | second)",
    # people and what they feel
    "we": "we | I",
    "kin": (
        "my (mother | father | sister | brother | aunt | uncle | cousin | wife | husband | son | daughter"
        " | grandmother"
        " | neighbour | colleague | flatmate | niece | nephew | grandfather | roommate"
        " | godmother) | Anna | Tom | Maria | Omar | Nina | Priya | Emma | Ivan | Hugo | Lucy | Ben | Clara"
        " | Paul | Rosa | David | Sofia | Peter | Julia | Karim | Yuki | Elena | Marcus | Daniel | Fatima | Oscar"
    ),
    "feeling+": (
        "happy | glad | delighted | pleased | cheerful | proud | thrilled | excited | relaxed | grateful"
        " | relieved | amused | satisfied | content"
    ),
    "feeling-": (
        "sad | angry | upset | annoyed | disappointed | frustrated | tired | gloomy | worried | unhappy | bored"
        " | nervous | discouraged | bitter"
    ),
    "feeling=": "hungry | thirsty | sleepy | curious | busy | puzzled | quiet | undecided | indifferent | awake",
    "padj+": (
        "kind | friendly | helpful | patient | polite | cheerful | charming | thoughtful | attentive"
        " | considerate | warm-hearted | obliging"
    ),
    "padj-": (
        "rude | careless | impatient | unfriendly | arrogant | lazy | unhelpful | grumpy | inattentive | bossy"
        " | dishonest"
    ),
    "padj=": "busy | young | quiet | new | elderly | on the phone | away | talkative | retired | middle-aged",
    "react+": "loved | adored | enjoyed | really liked | admired | praised | appreciated | treasured | recommended",
    "react-": (
        "hated | disliked | regretted | could not stand | complained about | did not like | resented | criticised"
        " | mocked"
    ),
    "react=": "noticed | compared | looked at | asked about | mentioned | described | inspected | examined | counted",
    "love+": "love | adore | really like | enjoy",
    "love-": "hate | dislike | not like | regret",
    "love=": "know | recognise | want to see | look at",
    # when, where, how long
    "day": "Monday | Tuesday | Wednesday | Thursday | Friday | Saturday | Sunday",
    "when": (
        "last night | yesterday | this morning | last week | on <day> | last <day> | on <day> evening"
        " | at the weekend"
        " | two days ago | this (spring | summer | autumn | winter) | in (January | February | April | June"
        " | July | August | September | October | November | December)"
    ),
    "span": (
        "(two | three | four | five | six | seven | ten | twelve | twenty) (days | weeks | months) | (half an"
        " | an | one) hour | a (day | week | month | whole afternoon)"
    ),
    "clock": (
        "noon | midnight | dawn | seven | eight | nine | ten | eleven | half past (four | five | six)"
        " | a quarter to (two | three)"
    ),
    # what a thing did, beside what its topic adds
    "did+": "made (us | <kin>) (smile | laugh | happy) | was worth the (money | wait) | made our day | <vp>",
    "did-": "made (us | <kin>) (angry | sad | unhappy) | was not worth the (money | wait) | let us down | <vp>",
    "did=": "took <span> | was over by <clock> | <vp>",
    "ord": "first | second | other | new | last | next",
    # clauses
    "clause": "the <part> was <ap> | the <parts> were <ap> | <det> <thing> was <ap> | <det> <thing> <did>",
    "result": (
        "it was <ap> | the <part> was <ap> | the <parts> were <ap> | it <did> | <we> <react> the (<part> | <parts>)"
        " | we felt <feeling> | the <role> was <padj> | it was <cmp> <than>"
    ),
    "aside": (
        "to be honest | in my opinion | on the whole | overall | this time | once again | in the end"
        " | as far as I can tell"
    ),
    # sentences that open a note
    "open": (
        "<det> <thing> [<when> | <where>] ~ was <ap> ."
        " | <det> <thing> (<when> | <where>) ~ <did> ."
        " | <we> <do> <det> <thing> [<when> | <where> | with <kin>] and ~ <result> ."
        " | <when> <we> <do> <det> <thing> and ~ <result> ."
        " | <kin> (said | thought | told us) that ~ <clause> ."
        " | <kin> and I <do> <det> <thing> and ~ <result> ."
        " | the <part> of (the | this) <thing> ~ was <ap> ."
        " | the <parts> <where> ~ were <ap> ."
        " | <when> I ~ <react> the <part> [and the <parts>] ."
        " | it was ~ <a adj> <thing> with <adj> <parts> ."
        " | we had ~ <a gadj> time <where> [<when>] ."
        " | after <span> <where> ~ we (felt | were) <feeling> ."
        " | for <span> ~ <det> <thing> has been <ap> ."
        " | if you like <plural> , ~ you will <love> this one ."
        " | <aside> , ~ <clause> ."
        " | has anyone else <done> <det> <thing> ?"
        " | the <role> <where> ~ was <padj> and the <part> was <ap> ."
        " | the <role> told us that ~ <clause> ."
        " | <det> <thing> that we <do> <when> ~ was <ap> ."
        " | (most | some | all) of the <parts> ~ were <ap> ."
        " | both the <part> and the <parts> ~ were <ap> ."
        " | when we <do> <det> <thing> , ~ <result> ."
        " | because of the <part> ~ we felt <feeling> ."
        " | my <ord> <thing> ~ was <ap> ."
        " | compared with the last <thing> , ~ this one was <cmp> ."
        " | this is ~ the <best> <thing> I have <done> [this year] ."
        " | <kin> and the <role> ~ <react> the <part> ."
        " | <det> <thing> ~ is <ap> and the <parts> are <ap> ."
        " | people <where> ~ <react> the <thing> ."
        " | nobody told us that ~ <clause> ."
        " | <we> <do> <det> <thing> because ~ <kin> <react> the <parts> ."
        " | before <clock> ~ we (felt | were) <feeling> ."
        " | <mixed>"
    ),
    "mixed+": "<contrast>",
    "mixed-": "<contrast>",
    "contrast": (
        "although the <part> was <ap!> , <det> <thing> was <ap> ."
        " | the <parts> were <ap!> but the <part> was <ap> ."
        " | <det> <thing> was <ap> even if the <part> was <ap!> ."
        " | I expected <a gadj!> <thing> , but it was <ap> ."
    ),
    "mixed=": "we <do> <det> <thing> <when> at <clock> . | <det> <thing> was <ap> while the <part> was <ap> .",
    # sentences that follow
    "follow": (
        "it was <ap> ."
        " | the <part> was <ap> and the <parts> were <ap> ."
        " | the <part> was <ap> ."
        " | the <parts> were <ap> ."
        " | <we> <react> the (<part> | <parts>) ."
        " | <kin> was <feeling> [too | about the <part>] ."
        " | we left feeling <feeling> ."
        " | <kin> <react> it [as well] ."
        " | the <role> was <padj> [to us | to <kin>] ."
        " | it <did> ."
        " | nothing about it was <gadj!> ."
        " | you (rarely | often | seldom) find such <adj> <plural> ."
        " | <own>"
    ),
    "own+": (
        "I am <feeling> that we <do> it . | I would <again> [with <kin>] . | we will <again> soon ."
        " | what <a gadj> <thing> ! | I loved every minute !"
        " | I would recommend it to anyone . | five stars from me . | do not miss it . | everything went well ."
        " | the whole family had fun . | I cannot wait to <again> ! | <kin> could not stop smiling ."
    ),
    "own-": (
        "I am <feeling> that we <do> it . | I would not <again> . | we will never <again> ."
        " | what <a gadj> <thing> ! | I want my money back !"
        " | I cannot recommend it . | one star from me . | avoid it if you can . | everything went wrong ."
        " | it was a waste of time . | who would <again> ? | <kin> wanted to go home ."
    ),
    "own=": (
        "we may <again> (next year | some day) . | I have no strong opinion . | three stars from me ."
        " | everything went as planned . | we (left | got there | came home) at <clock> . | it took <span> ."
        " | would you <again> ? | <kin> took some pictures . | it was the <best> <thing> of the <year> ."
    ),
    "year": "week | month | year | season",
}
